"""Predict the labels of new texts with a bundle: from files of texts to Parquet, JSON lines or CSV.

    axml-ray predict --bundle bundles/quickstart --input texts.jsonl --output predictions [--format csv]

After a stop, the same command continues with the missing shards. A text that cannot be read becomes a row with its id
and an error; if all are such, the command fails.
"""

import argparse
import logging
import time
from typing import TYPE_CHECKING, get_args

from pydantic import ValidationError

from axml_ray.cli.console import count, job_of_flags, number
from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import absolute, absolute_place, with_urls
from axml_ray.settings import LabelConditions, ReadingSettings
from axml_ray.settings.base import explain

if TYPE_CHECKING:
    from axml_ray.inference.bundle.bundle import Bundle

log = logging.getLogger(__name__)

READING = tuple(name for name in ReadingSettings.model_fields if name != "source" and not name.startswith("label"))
"""Settings of how records without labels are read."""
FORMATS = tuple(name for name in get_args(ReadingSettings.model_fields["source"].annotation) if "installed" not in name)
"""Values of `--source`."""


_share = number("a number from 0 to 1", lambda value: 0 <= value <= 1)
_gpus = number("a whole number, or a share of one GPU", lambda value: value >= 0 and (value <= 1 or not value % 1))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("--bundle", type=absolute, required=True, metavar="DIR", help="directory or URL of the bundle")
    parser.add_argument(
        "--input", type=absolute_place, required=True, nargs="+", metavar="PATTERN",
        help="files, directories, globs or URLs, in any format that a corpus can have",
    )  # fmt: skip
    parser.add_argument(
        "--source", choices=FORMATS, metavar="FORMAT",
        help=f"format of the files: {', '.join(FORMATS)}; by default that of their names or their first line",
    )  # fmt: skip
    for name in READING:
        field = ReadingSettings.model_fields[name]
        text = f"{field.description} By default as in training" + ("; '' for none." if field.default is None else ".")
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="NAME", help=text)
    parser.add_argument(
        "--output", type=absolute, required=True, metavar="DIR", help="directory or URL of the predictions"
    )
    parser.add_argument(
        "--format", choices=("parquet", "jsonl", "csv"), default="parquet",
        help="format of the predictions; csv has a row for each label of a text",
    )  # fmt: skip
    parser.add_argument("--top-k", type=count, default=5, metavar="N", help="largest number of labels of a text")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--threshold", type=_share, metavar="PROBABILITY", help="omit labels with a lower probability, 0 to 1"
    )
    group.add_argument(
        "--precision", type=_share, metavar="SHARE",
        help="use the lowest threshold at which this share of labels was correct on validation, such as 0.8",
    )  # fmt: skip
    for name, field in LabelConditions.model_fields.items():
        kind = "LABEL" if name.endswith("labels") else "PREFIX"
        parser.add_argument(f"--{name.replace('_', '-')}", nargs="+", default=(), metavar=kind, help=field.description)
    parser.add_argument("--actors", type=count, metavar="N", help="largest number of predictors; default: all that fit")
    parser.add_argument(
        "--cpus-per-actor", type=count, default=1, metavar="N", help="CPUs and threads of a predictor; default 1"
    )
    parser.add_argument(
        "--gpus-per-actor", type=_gpus, default=0.0, metavar="N",
        help="GPUs of a predictor; below 1, several share one; default 0, which predicts on CPUs",
    )  # fmt: skip


def reading_settings(given: argparse.Namespace, bundle: "Bundle") -> ReadingSettings:
    """Return how to read the texts: by the flags, else as the training texts were.

    Raises:
        SettingsError: a flag has a wrong value.
    """
    trained = {name: getattr(bundle.settings, name) for name in READING}
    flags = {name: getattr(given, name) or None for name in READING if getattr(given, name) is not None}
    try:
        return ReadingSettings(**trained | flags, source=given.source or "auto")
    except ValidationError as error:
        problem = error.errors()[0]
        flag = str(problem["loc"][0]).replace("_", "-")
        raise SettingsError(f"--{flag}: {explain(problem)} (given: {problem['input']!r})") from None


def label_conditions(given: argparse.Namespace) -> LabelConditions | None:
    """Return the conditions on labels that the flags give, if any."""
    flags = {name: values for name in LabelConditions.model_fields if (values := tuple(getattr(given, name)))}
    return LabelConditions(**flags) if flags else None


@job_of_flags(__doc__, add_flags)
def main(given: argparse.Namespace) -> None:
    """Predict the texts, and print their number and the number of errors.

    Raises:
        SettingsError: the bundle, the input or the output is unusable, no text could be read and tagged, or the actors
            do not fit.
    """
    from axml_ray.corpus.readers.sources import open_readers
    from axml_ray.inference.bundle.bundle import Bundle
    from axml_ray.inference.explain.codec import Codec
    from axml_ray.inference.explain.conditions import AllowedLabels
    from axml_ray.inference.predict.predict_files import PredictionOptions, predict_files

    log.info("predict: checking the bundle")
    bundle = Bundle.open(given.bundle)
    threshold = given.threshold
    if given.precision is not None:
        threshold = bundle.calibration.threshold(precision=given.precision)
        print(f"--precision {given.precision:g}: labels with a probability of {threshold:.3g} or more are written")
    reading = reading_settings(given, bundle)
    # A CSV file without a telling name cannot be known from plain text, but the training texts were such files.
    otherwise = "csv" if bundle.settings.source == "csv" else "plain_text"
    try:
        readers = open_readers(given.input, reading, labelled=False, otherwise=otherwise)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--input: {error}") from None
    conditions = label_conditions(given)
    if conditions is not None:
        AllowedLabels.of(conditions, Codec(bundle))  # an unknown label is reported here, before Ray starts
    options = PredictionOptions(form=given.format, top_k=given.top_k, threshold=threshold, conditions=conditions)
    began = time.monotonic()
    result = predict_files(
        given.bundle,
        readers,
        given.output,
        options,
        actors=given.actors,
        cpus_per_actor=given.cpus_per_actor,
        gpus_per_actor=given.gpus_per_actor,
    )
    seconds = time.monotonic() - began
    documents, errors = result["documents"], result["errors"]
    print(f"{documents:,} texts, {errors:,} of them with an error, in {seconds:,.1f} s")
    if 0 < errors < documents:
        print(f"The first error: {result['first_error']}")
    if 0 < errors == documents:
        storage.remove(given.output)  # else a corrected command would be refused, as another job
        advice = "--source, --text-field and --title-field say how to read the files"
        raise SettingsError(f"--input: no text could be predicted, such as {result['first_error']}; {advice}")
    files = "1 file" if len(result["files"]) == 1 else f"{len(result['files']):,} files"
    print(f"Predictions: {with_urls(given.output)} ({files} and predictions.json)")
