"""Settings of the corpus: where the texts and labels are, and how they become integers (package `axml_ray.corpus`)."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from axml_ray.settings.base import (
    AbsolutePath,
    CsvDelimiter,
    FieldNames,
    LabelSeparator,
    Name,
    Places,
    Positive,
    Settings,
    Share,
)


class ExpectedCounts(Settings):
    """The expected size of a corpus, for `axml-ray plan` before the corpus is prepared; nothing else reads it."""

    documents: Positive | None = None
    """Training documents."""
    labels: Positive | None = None
    """Labels with training documents."""
    words: Annotated[int, Field(ge=3)] | None = None
    """Words of the vocabulary; by default the limit, 500,000."""
    tokens: Annotated[float, Field(gt=0)] | None = None
    """Mean number of words of a document, cut at `corpus.max_tokens`."""
    labels_per_document: Annotated[float, Field(gt=0)] | None = None
    """Mean number of labels of a document; by default 5."""


INPUTS = ("train", "valid", "test", "label_names", "label_features", "continues")
"""Settings that name inputs, besides `word_vectors`, which may."""


class ReadingSettings(Settings):
    """Settings of how the records of files are read; a bundle remembers them for its predictions."""

    source: Literal[
        "auto", "json_lines", "parquet", "datasets", "csv", "text_pairs", "plain_text", "installed_packages"
    ] = "auto"
    """Format of the files, `auto` to choose it by their names; or the docstrings of the installed Python packages.
    `plain_text` is one text per line without labels, for predictions only."""
    text_field: str = "text"
    """Field or column of the text, or of the body where there is a title: a string, or a list of paragraphs. Like the
    other fields, it may be inside of objects: `doc.text`."""
    title_field: str | None = None
    """Field or column of a title, which some documents must have; it is put before the text, with ` /SEP/ ` between."""
    labels_field: FieldNames = "labels"
    """Field or column of the labels: a list, or a string that holds a list or labels with separators. Or several
    columns of 0 and 1, one for each label, such as `toxic,insult`; write them as a list if a name has a comma."""
    id_field: str = "id"
    """Field or column of the document's id, if it has one; else file and line are the id. No two documents of the same
    files (`train`, `valid` or `test`) may have the same."""
    label_separator: LabelSeparator = ";"
    """Separator of the labels in a CSV cell or another string of labels; `tab` is a tab. A cell of URIs alone needs
    none: each may be in angle brackets, or between blanks."""
    csv_delimiter: CsvDelimiter | None = None
    """Separator of CSV cells: one character, or `tab`; by default the one that gives the columns: a tab in .tsv and
    .tab, a comma, or else a tab, a semicolon or a vertical bar."""


class CorpusSettings(ReadingSettings):
    """Settings of the texts and labels, and of how they become integers."""

    name: Name = "corpus"
    """Directory of the prepared corpus below `corpora`."""
    train: Places = ()
    """Files, directories, globs or URLs of the training documents."""
    valid: Places = ()
    """The same for validation; without any, `valid_documents` are drawn from train."""
    test: Places = ()
    """The same for the test split, used for the final evaluation only; without any, `test_share` of the
    documents of train are drawn."""
    valid_documents: Positive = 200
    """Documents drawn from train for validation, limited to a tenth of train (the authors' program: 200, or 4,000 for
    its large corpora)."""
    test_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the documents that becomes the test split where `test` names no files, by a hash of the text. With 0
    there is no test split, which the main job needs for its evaluation."""
    max_train_documents: Positive | None = None
    """Number of training documents to use, drawn by a hash of the text; by default all."""
    drop_duplicates: bool = False
    """Keep each text once over all splits, with the labels of the record that is kept; a test text that is also in
    train is then dropped from train."""
    min_label_count: Positive = 1
    """Labels with fewer training documents are dropped from all splits; those with none stay, and count as missed."""
    max_rejected_share: Share = 0.0
    """Largest share of bad records, which are written to `rejected.jsonl`; more are an error. In an unterminated CSV
    row, each line counts as one."""
    label_names: AbsolutePath | None = None
    """Readable names: lines of label, tab, name; or CSV; or line i names label i; or the repository's `lbl.json`. At
    least half of the file's labels must be in the corpus, or half of the corpus's in the file."""
    label_features: AbsolutePath | None = None
    """Features of the labels as in the Extreme Classification Repository: a line of two counts, then row i for label i.
    Label trees are clustered by them; by default by TF-IDF centroids of the training texts."""
    segmentation: Literal["words", "characters"] = "words"
    """`characters` makes each character of scripts written without spaces, such as Chinese and Thai, one word."""
    max_tokens: Positive = 500
    """Texts are truncated to this number of words."""
    min_document_frequency: Positive = 1
    """Words in fewer training documents become the unknown word (which is thereby trained) or, with `subwords`,
    pieces. So do all but the 500,000 most frequent words."""
    subwords: bool = False
    """Split a word outside the vocabulary into the longest words of the vocabulary that compose it, at worst single
    characters, instead of mapping it to the unknown word; for languages with inflection or compounds. Words with a
    character that occurs in no training text, or of more than 100 characters, stay unknown. The characters are added
    to the vocabulary, and `max_tokens` counts pieces."""
    word_vectors: Literal["train", "random"] | AbsolutePath = "train"
    """`train` (from the words near each word in the training texts), `random`, or a file: GloVe, word2vec or fastText
    `.vec` text, each also compressed; or an `.npy` file with `vocab.txt` in the same directory."""
    word_dimension: Positive = 300
    """Dimension of `train` and `random` word vectors."""
    continues: AbsolutePath | None = Field(default=None, exclude_if=lambda value: value is None)
    """Directory of a prepared corpus that this one continues: its trained labels keep their ids, new ones follow, and
    its training texts are never drawn for validation. `axml-ray train --continue` sets it."""
    expected: ExpectedCounts = Field(default=ExpectedCounts(), exclude=True)
    """Expected size of the corpus before it is prepared. Results and fingerprints do not depend on it."""

    @model_validator(mode="after")
    def _source_has_files(self) -> Self:
        if self.source != "installed_packages" and not self.train:
            raise ValueError(
                "corpus.train: names no file; give --config mine --corpus.train FILE, or a config with one"
            )
        if self.source == "installed_packages" and (self.train or self.valid or self.test):
            raise ValueError("corpus.train, .valid and .test: leave them out for installed_packages")
        return self

    @property
    def draws_test(self) -> bool:
        """Return whether the test split is drawn from the documents of train."""
        return not self.test and self.test_share > 0

    @property
    def has_test(self) -> bool:
        """Return whether there is a test split, of files or drawn."""
        return bool(self.test) or self.draws_test

    @property
    def word_vectors_path(self) -> Path | None:
        """The file of `word_vectors`; None for `train` and `random`."""
        return self.word_vectors if isinstance(self.word_vectors, Path) else None

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a prepared corpus depends on, without the paths of its inputs, whose contents count."""
        values = self.model_dump(mode="json", exclude={"name", *INPUTS})
        return values | ({"word_vectors": None} if self.word_vectors_path else {})
