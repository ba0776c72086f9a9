"""Images a second of packed data sets against other input pipelines: decode, random crop, resize to 224, flip.

    python benchmarks/input_pipeline.py --images SAMPLE.tar [--rounds 7] [--batch 50] [--workers 0 2] [--output F.json]

SAMPLE.tar: a flat tar of JPEGs, or a folder of them; --generate N makes N in its place. Arms, in turn in each
round, each in a process of its own with one thread a process and its files warm in the page cache:
  torchvision  ImageFolder, RandomResizedCrop(224), flip, ToTensor, Normalize, DataLoader: float32 batches
  folder       this project's reading of the same folder: uint8 batches, normalised later on the device, as below
  full         ``bigbatch pack --profile full``
  fast         ``bigbatch pack --profile fast``, short side 256
and, where they are installed: timm's create_loader on the folder, webdataset on a tar, Hugging Face datasets with
embedded bytes, DALI on CPUs (fused decode and random crop); their transforms are torchvision's or DALI's own. With
--device cuda a batch counts when it has arrived there and is normalised, torchvision's loader pins its memory, and DALI
also decodes on the GPU.
A figure is of --passes passes after one that is not counted, in which processes start, memory is taken and records
are compared with their checksums: with 0 workers images a second of CPU time, so that other load on the machine
matters little, with workers of wall time. Then: the same with the files dropped from the page cache before each pass
(cold; a virtual disk's host may still hold them), memory over 20 epochs with 2 workers, and PSNR of validation crops.
Prints tables and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

import input_pipeline_others  # noqa: E402
from input_pipeline_others import Arm  # noqa: E402

ARMS = ("torchvision", "folder", "full", "fast")
T = TypeVar("T")
OTHERS = ("timm", "webdataset", "datasets", "dali")
ON_A_GPU = ("dali_gpu",)


def write_tree(options: argparse.Namespace, root: Path) -> int:
    """An image folder of 10 classes; every 5th image also for validation. Returns the number of images."""
    count = 0
    for number, data in enumerate(sample(options)):
        for part in ("train", "val") if number % 5 == 0 else ("train",):
            folder = root / part / f"class{number // 5 % 10}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:05d}.jpg").write_bytes(data)
        count += 1
    return count


def sample(options: argparse.Namespace) -> Iterator[bytes]:
    if options.generate:
        yield from generated(options.generate)
    elif options.images.is_dir():
        yield from (path.read_bytes() for path in sorted(options.images.rglob("*")) if path.is_file())
    else:
        with tarfile.open(options.images) as archive:
            yield from (archive.extractfile(member).read() for member in archive if member.isfile())


def generated(count: int) -> Iterator[bytes]:
    """Noise, 500 × 375, stored as most of ImageNet's files are: colours at full size, about 110 kB.

    Of the same contrast in each octave, as photographs have (Field 1987, "Relations between the statistics of natural
    images and the response properties of cortical cells"), and a quarter of it in colour.
    """
    import io

    import numpy as np
    from PIL import Image

    octaves = (4, 8, 16, 32, 64, 128, 256)
    for seed in range(count):
        draws = np.random.default_rng(seed)
        total = np.zeros((375, 500, 3))
        for cells in octaves:
            small = Image.fromarray(draws.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
            total += np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)) / len(octaves)
        total[..., 1:] = 128 + (total[..., 1:] - 128) / 4
        buffer = io.BytesIO()
        image = Image.fromarray(total.astype(np.uint8), "YCbCr").convert("RGB")
        image.save(buffer, "JPEG", quality=94, subsampling="4:4:4")
        yield buffer.getvalue()


def repeated_folder() -> Any:
    """``ImageFolder`` with an attribute ``passes``: how often it is gone through in one epoch."""
    from torchvision import datasets

    class Repeated(datasets.ImageFolder):
        passes = 1

        def __len__(self) -> int:
            return self.passes * len(self.samples)

        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index % len(self.samples))

    return Repeated


def our_arm(path: Path, batch: int) -> Arm:
    """Our loader on a folder or a packed set."""
    import numpy as np

    from bigbatch.train_loop.config import DataConfig, LoaderConfig
    from bigbatch.train_loop.data import sampling
    from bigbatch.train_loop.data.catalogue import open_data
    from bigbatch.train_loop.data.source import Epoch

    def batches(epoch: int, workers: int, passes: int) -> Iterator[Any]:
        source = open_data(DataConfig(name=str(path), image_size=224, loader=LoaderConfig(workers=workers)))
        orders = [sampling.train_order(source.info.train_size, e, epoch) for e in range(passes)]
        order = np.concatenate(orders)
        whole = len(order) // batch
        yield from source.read_train(np.array_split(order[: whole * batch], whole), Epoch(0, epoch))
        source.close()

    return batches


def build_arms(folder: Path, options: argparse.Namespace) -> tuple[dict[str, Arm], dict[str, str]]:
    """The arms, and why others are missing."""
    import torch
    from torchvision import transforms

    torch.set_num_threads(1)
    pinned, repeated = options.device == "cuda", repeated_folder()
    normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    crop = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalise]

    def torchvision_arm(epoch: int, workers: int, passes: int) -> Iterator[Any]:
        torch.manual_seed(epoch)
        images = repeated(str(folder / "images" / "train"), transforms.Compose(crop))
        images.passes = passes
        return iter(
            torch.utils.data.DataLoader(images, options.batch, shuffle=True, num_workers=workers, pin_memory=pinned)
        )

    arms: dict[str, Arm] = {"torchvision": torchvision_arm}
    for name, place in (("folder", "images"), ("full", "full"), ("fast", "fast")):
        arms[name] = our_arm(folder / place, options.batch)
    missing = {}
    for name in OTHERS + (ON_A_GPU if options.device == "cuda" else ()):
        try:
            arms[name] = getattr(input_pipeline_others, f"{name}_arm")(
                folder, options.batch, repeated, transforms.Compose(crop)
            )
        except (ImportError, OSError) as error:  # OSError: a library of the system's that is not there
            missing[name] = str(error)
    return arms, missing


def apart(function: Callable[..., T], *arguments: Any, start: str = "fork") -> T:
    """``function(*arguments)`` in a process of its own, so that no arm's allocator or threads serve another."""
    context: Any = multiprocessing.get_context(start)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, function, arguments))
    process.start()
    there.close()
    found: T = here.recv()  # EOFError where it failed, below its traceback
    process.join()
    return found


def _send(end: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    end.send(function(*arguments))


def measure(arm: Arm, epoch: int, workers: int, passes: int, skipped: int, device: str) -> float:
    """Images a second, without the first ``skipped`` batches; with a GPU until they are normalised there."""
    clock = time.perf_counter if workers else time.process_time
    batches, arrive = arm(epoch, workers, passes), arrival(device)
    for _ in range(skipped):
        arrive(next(batches))
    arrive(None)
    began, images = clock(), 0
    for batch in batches:
        images += len(batch[0])
        arrive(batch)
    arrive(None)
    return images / (clock() - began)


def arrival(device: str) -> Callable[[Any], None]:
    """What brings a batch to the device and normalises bytes there; None waits until all have arrived."""
    if device == "cpu":
        return lambda batch: None
    import torch

    from bigbatch.train_loop.config import LoaderConfig
    from bigbatch.train_loop.data.loading.upload import Uploader

    there = torch.device(device)
    upload = Uploader(there, LoaderConfig())
    mean, std = (torch.tensor(v, device=there) * 255 for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    def arrive(batch: Any) -> None:
        if batch is None:
            torch.cuda.synchronize()
        elif isinstance(batch[0], torch.Tensor) and batch[0].dtype == torch.uint8:  # ours, [N, H, W, 3]
            images, _ = upload((batch[0], batch[1]))
            images.float().sub_(mean).div_(std).permute(0, 3, 1, 2)
        elif isinstance(batch[0], torch.Tensor):
            for tensor in batch:
                tensor.to(there, non_blocking=True)

    return arrive


def drop(folder: Path) -> None:
    """A folder's files from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            with contextlib.suppress(OSError):  # a file system that is read only
                os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def cold(arm: Arm, folder: Path, epoch: int) -> float:
    """Images a second of wall time in this process, with nothing of the data in the page cache."""
    drop(folder)
    began, images = time.perf_counter(), 0
    for pixels, _ in arm(epoch, 0, 1):
        images += len(pixels)
    return images / (time.perf_counter() - began)


def memory_mb(path: Path, batch: int, epochs: int, workers: int = 2) -> dict[str, list[float]]:
    """Memory after each epoch, 10^6 bytes: what is this process's own, and the largest loader process's own.

    ``uss`` is what would be free if the process ended; ``pss`` adds its share of what processes have in common.
    """
    import psutil

    from bigbatch.train_loop.config import BatchSplit, DataConfig, LoaderConfig
    from bigbatch.train_loop.data.catalogue import open_data

    multiprocessing.set_start_method("fork", force=True)  # as where a run is started, whatever started this process
    source = open_data(DataConfig(name=str(path), image_size=224, loader=LoaderConfig(workers=workers)))
    here = psutil.Process()
    others = set(here.children())
    found: dict[str, list[float]] = {"trainer_uss": [], "loader_uss": [], "loader_pss": []}
    for epoch in range(epochs):
        for _ in source.train_batches(0, epoch, BatchSplit(1, 1, batch), 0):
            pass
        loaders = [child.memory_full_info() for child in set(here.children()) - others]
        found["trainer_uss"].append(here.memory_full_info().uss / 1e6)
        found["loader_uss"].append(max(m.uss for m in loaders) / 1e6)
        found["loader_pss"].append(max(m.pss for m in loaders) / 1e6)
    source.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, default=Path("imagenet_sample_500.tar"))
    parser.add_argument("--generate", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where batches are to arrive")
    parser.add_argument("--epochs", type=int, default=20, help="over which memory is watched")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = write_tree(options, folder / "images")
        sizes = pack_all(folder) | {"psnr_db": quality(folder)}
        arms, missing = build_arms(folder, options)
        raw: dict[str, dict[str, list[float]]] = {str(w): {arm: [] for arm in arms} for w in options.workers}
        raw["0 cold"] = {arm: [] for arm in ARMS}
        for epoch in range(options.rounds):
            for workers in options.workers:
                for arm in arms:
                    skipped = images // options.batch
                    arguments = (arms[arm], epoch, workers, options.passes + 1, skipped, options.device)
                    raw[str(workers)][arm].append(apart(measure, *arguments))
            for arm in ARMS:
                place = folder / (arm if arm in ("full", "fast") else "images")
                raw["0 cold"][arm].append(apart(cold, arms[arm], place, epoch))
        memory = apart(memory_mb, folder / "full", options.batch, options.epochs, start="spawn")
    report(raw, images, sizes | {"missing": missing, "memory_mb": memory}, options)


def pack_all(folder: Path) -> dict[str, Any]:
    from bigbatch.train_loop.data.packing import command
    from bigbatch.train_loop.data.pixels.jpeg import jpegtran_path

    for profile in ("full", "fast"):
        if command.main([str(folder / "images"), str(folder / profile), "--profile", profile]):
            raise SystemExit(f"packing {profile} failed")
    bytes_of = {
        name: sum(file.stat().st_size for file in (folder / name).rglob("train*") if file.is_file())
        for name in ("full", "fast")
    }  # fmt: skip
    source = sum(file.stat().st_size for file in (folder / "images" / "train").rglob("*.jpg"))
    return {"train_bytes": {"images": source} | bytes_of, "lossless": jpegtran_path() is not None}


def quality(folder: Path) -> dict[str, dict[str, float]]:
    """PSNR, dB, of validation crops at 224: a packed set's against the image folder's, which are torchvision's."""
    import numpy as np

    from bigbatch.train_loop.config import DataConfig
    from bigbatch.train_loop.data.catalogue import open_data

    def crops(name: str) -> Any:
        source = open_data(DataConfig(name=str(folder / name), image_size=224))
        return np.concatenate([pixels.numpy().astype(float) for pixels, _ in source.val_batches(50, 0, 1)])

    reference, found = crops("images"), {}
    for name in ("full", "fast"):
        errors = np.square(crops(name) - reference).mean(axis=(1, 2, 3))
        psnr = 10 * np.log10(255**2 / np.maximum(errors, 1e-9))
        found[name] = {"median": float(np.median(psnr)), "min": float(psnr.min()), "images": len(psnr)}
    return found


def versions() -> dict[str, str]:
    """Of what decodes and of the pipelines compared."""
    from importlib import metadata

    names = ("torchvision", "pillow", "timm", "webdataset", "datasets", "nvidia-dali-cuda120")
    return {name: metadata.version(name) for name in names if any(metadata.distributions(name=name))}


def report(raw: dict[str, Any], images: int, sizes: dict[str, Any], options: argparse.Namespace) -> None:
    from store import store_measured

    summary: dict[str, Any] = {}
    for name, psnr in sizes["psnr_db"].items():
        print(f"PSNR of {name}'s validation crops, dB: median {psnr['median']:.1f}, least {psnr['min']:.1f}")
    for name, reason in sizes["missing"].items():
        print(f"without {name}: {reason}")
    for name, values in sizes["memory_mb"].items():
        print(f"{name}, 10^6 bytes: {values[0]:.0f} after one epoch, {values[-1]:.0f} after {len(values)}")
    for workers, arms in raw.items():
        unit = "images a second of one core" if workers == "0" else f"images a second, {workers} workers"
        unit = "images a second, one process, cold" if workers == "0 cold" else unit
        print(f"{unit:36}{'median':>9}{'min':>9}{'max':>9}  × torchvision, by round")
        for arm, rates in arms.items():
            ratios = [mine / theirs for mine, theirs in zip(rates, arms["torchvision"], strict=True)]
            summary[f"{arm} {workers}"] = {"median": statistics.median(rates), "ratio": statistics.median(ratios)}
            cells = "  ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{arm:36}{statistics.median(rates):9.0f}{min(rates):9.0f}{max(rates):9.0f}  {cells}")
    settings = {
        "images": images, "generated": bool(options.generate), "rounds": options.rounds, "batch": options.batch,
        "passes": options.passes, "device": options.device, "versions": versions(), **sizes
    }  # fmt: skip
    store_measured("input_pipeline", settings, summary, raw, options.output)


if __name__ == "__main__":
    main()
