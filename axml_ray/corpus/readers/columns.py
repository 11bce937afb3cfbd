"""The columns of a table that hold fields of records."""

from axml_ray.corpus.records.records import Fields
from axml_ray.corpus.records.values import top_field


class MissingColumn(ValueError):
    """Raised if a table lacks a required column."""


def columns_to_read(fields: Fields, names: list[str]) -> list[str]:
    """Return those of a table's columns `names` that hold fields of a record.

    Raises:
        MissingColumn: a required column is missing.
        ValueError: several columns have the name of a field.
    """
    labels = fields.label_fields
    required = [*([fields.title] if fields.title else []), fields.text, *(labels if fields.labelled else ())]
    for column in required:
        if top_field(column, names) is None:
            setting = "text_field" if column == fields.text else "title_field"
            if column in labels:
                setting = "labels_field (to several, such as toxic,insult, if each label has a column of 0 and 1)"
            raise MissingColumn(f"has no column {column!r}; its columns are {', '.join(names)}; set {setting}")
    columns = (top_field(column, names) for column in (*required, *labels, fields.id))
    named = [name for name in dict.fromkeys(columns) if name is not None]
    if repeated := [name for name in named if names.count(name) > 1]:
        raise ValueError(f"has several columns {repeated[0]!r}; rename them")
    return named
