"""An executor decodes photos on its device: files in the rooms of requests become the inputs of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import ModelError
from flatout.data.decoding.decode import DecodePlan, decode_one
from flatout.data.decoding.nvjpeg import NvJpeg, decode_to_device
from flatout.data.fitted.photo_rows import PhotoHost
from flatout.packaging.answering import Preparation
from flatout.packaging.package import Package
from flatout.packaging.parity import Parity, compare
from flatout.packaging.ports import Port
from flatout.packaging.runtimes.runtime import Runtime
from flatout.packaging.samples import Samples
from flatout.serving.batching import Waiting
from flatout.serving.photo_files import HEAD, file_layout, head_of, read_head

Say = Callable[[str], None]
File = tuple[Tensor, DecodePlan]


class DevicePhotos:
    """Files are decoded with nvJPEG on a GPU, and as in training on a CPU; then scaled by the steps of the package."""

    def __init__(self, package: Package, device: torch.device) -> None:
        host = package.fitted.host
        assert isinstance(host, PhotoHost)
        self._cover = host.cover
        self._before = Preparation(package.fitted).before.to(device)
        self._inputs: tuple[Port, ...] = package.program.inputs
        self._device = device
        self.layout = file_layout(package.program.outputs)

    def inputs(self, requests: Sequence[Waiting]) -> dict[str, Tensor]:
        """Of one photo a request, in their order."""
        return self.prepared([self._file(request) for request in requests])

    def _file(self, request: Waiting) -> File:
        memory = request.front.arena.memory
        begin = request.offset + self.layout.outputs.row_bytes
        nbytes, planned = read_head(memory, begin)
        begin += HEAD.size
        return torch.from_numpy(memory[begin : begin + nbytes]), planned

    @torch.no_grad()
    def prepared(self, files: Sequence[File]) -> dict[str, Tensor]:
        contents, plans = [content for content, _ in files], [planned for _, planned in files]
        if self._device.type == "cuda":
            images = decode_to_device(contents, plans, self._device)
        else:
            images = [_decoded_here(*file) for file in files]
        shapes = torch.tensor([image.shape[:2] for image in images])
        sizes = shapes.prod(1) * 3
        columns = torch.stack([sizes.cumsum(0) - sizes, shapes[:, 0], shapes[:, 1]]).to(self._device, non_blocking=True)
        start, height, width = columns.unbind()
        pixels = torch.cat([image.reshape(-1) for image in images])
        made = self._before({"pixels": pixels, "start": start, "height": height, "width": width})
        return {port.name: made[port.name].contiguous() for port in self._inputs}

    def agreement(self, package: Package, runtime: Runtime) -> Parity | None:
        """How the answers to the package's photos compare with those of the run. None if there are no such photos."""
        heads = [(one, head_of(one, self._cover)) for one in package.samples.photos]
        kept = [(place, one, head) for place, (one, head) in enumerate(heads) if head is not None]
        if not kept:
            return None
        files = [
            (torch.frombuffer(bytearray(one), dtype=torch.uint8), read_head(memoryview(head), 0)[1]) for _, one, head in kept
        ]
        places = torch.tensor([place for place, _, _ in kept])
        wanted = {name: column.index_select(0, places) for name, column in package.samples.outputs.items()}
        samples = Samples({"photo": torch.arange(len(files))}, wanted, package.samples.origin)

        def answers(rows: Any) -> dict[str, Tensor]:
            return runtime.run(self.prepared([files[place] for place in rows["photo"].tolist()]))

        return compare(answers, samples, package.parts(self._device).allowed)


def _decoded_here(content: Tensor, planned: DecodePlan) -> Tensor:
    high, wide = -(-planned.stage_height // planned.factor), -(-planned.stage_width // planned.factor)
    made = np.empty(high * wide * 3, np.uint8)
    problem = decode_one(content.numpy().tobytes(), planned, made)
    if problem is not None:
        raise ModelError(f"the photo {problem}")
    return torch.from_numpy(made.reshape((wide, high, 3) if planned.orientation >= 5 else (high, wide, 3)))


def device_photos(
    package: Package, runtime: Runtime, device: torch.device, wanted: str, name: str, say: Say
) -> DevicePhotos | None:
    """`wanted` is where photos are decoded: "device", "host", or "auto": on a GPU, if the answers agree with the run's."""
    if not isinstance(package.fitted.host, PhotoHost) or wanted == "host" or (wanted == "auto" and device.type != "cuda"):
        return None
    missing = NvJpeg.missing() if device.type == "cuda" else None
    if missing is not None:
        if wanted == "device":
            raise ModelError(
                f"{name}: photos can't be decoded on {device}: {missing}; --photos-on host decodes them on the CPU"
            )
        return None
    made = DevicePhotos(package, device)
    found = made.agreement(package, runtime)
    by = "nvJPEG" if device.type == "cuda" else "the process of the model"
    if found is not None and found.holds:
        say(f"{name}: photos are decoded by {by}; {found.rows} answers differ from the run's by at most {found.worst:.2g}")
        return made
    why = (
        "the package has no JPEGs to compare answers with"
        if found is None
        else f"answers differ from the run's: {found.problem}"
    )
    if wanted == "device":
        say(f"{name}: photos are decoded by {by} as asked, though {why}")
        return made
    say(f"{name}: photos are decoded on the CPU, not by {by}: {why}; --photos-on device decodes there anyway")
    return None
