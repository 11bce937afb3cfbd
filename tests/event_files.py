"""TensorBoard's event files, read as TensorBoard reads them."""

import struct
from collections.abc import Iterator
from pathlib import Path

from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData


def _masked(data: bytes) -> int:
    """The checksum of a TFRecord."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _events(path: Path) -> Iterator[Event]:
    """What a file of events holds: for each its length, that length's checksum, the event, its checksum."""
    content = path.read_bytes()
    while content:
        (length,), (crc,) = struct.unpack("<Q", content[:8]), struct.unpack("<I", content[8:12])
        assert crc == _masked(content[:8])
        data, (crc,) = content[12 : 12 + length], struct.unpack("<I", content[12 + length : 16 + length])
        assert crc == _masked(data)
        yield Event.FromString(data)
        content = content[16 + length :]


def _in_order(directory: Path) -> Iterator[Event]:
    for path in sorted(directory.iterdir(), key=lambda path: int(path.suffix[1:])):
        yield from _events(path)


def points(directory: Path) -> dict[str, dict[int, float]]:
    """Each scalar's value at each step: a start drops older files' points from there on."""
    found: dict[str, dict[int, float]] = {}
    for event in _in_order(directory):
        if event.session_log.status == SessionLog.START:
            for tag, steps in found.items():
                found[tag] = {step: value for step, value in steps.items() if step < event.step}
        for value in event.summary.value:
            if not value.HasField("metadata"):
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def texts(directory: Path) -> dict[str, str]:
    """Each text by its tag."""
    return {
        value.tag: value.tensor.string_val[0].decode()
        for event in _in_order(directory)
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "text"
    }


def hyperparameters(directory: Path) -> dict[str, str | float]:
    """The parameters of the HPARAMS tab."""
    for event in _in_order(directory):
        for value in event.summary.value:
            if value.tag == "_hparams_/session_start_info":
                started = HParamsPluginData.FromString(value.metadata.plugin_data.content).session_start_info
                return {
                    key: each.string_value if each.HasField("string_value") else each.number_value
                    for key, each in started.hparams.items()
                }
    return {}
