"""Other projects' input pipelines, as arms of benchmarks/input_pipeline.py.

Each ``NAME_arm(folder, batch, repeated, transform)`` builds what it needs below ``folder`` and returns an arm. It
raises ImportError or OSError where its project is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Arm = Callable[[int, int, int], Iterator[Any]]
"""Batches, given epoch, loader workers and passes."""


def timm_arm(folder: Path, batch: int, repeated: Any, transform: Any) -> Arm:
    from timm.data import create_loader

    def batches(epoch: int, workers: int, passes: int) -> Iterator[Any]:
        images = repeated(str(folder / "images" / "train"))
        images.passes = passes
        return iter(
            create_loader(
                images, (3, 224, 224), batch, is_training=True, use_prefetcher=False, color_jitter=None,
                num_workers=workers, persistent_workers=False, interpolation="bilinear",
            )
        )  # fmt: skip

    return batches


def webdataset_arm(folder: Path, batch: int, repeated: Any, transform: Any) -> Arm:
    import torch
    import webdataset

    for number in range(2):
        with webdataset.TarWriter(str(folder / f"web-{number}.tar")) as writer:
            for path in sorted((folder / "images" / "train").rglob("*.jpg"))[number::2]:
                writer.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": int(path.parent.name[5:])})

    def batches(epoch: int, workers: int, passes: int) -> Iterator[Any]:
        urls = [str(folder / f"web-{number}.tar") for number in range(2)] * passes
        images = webdataset.WebDataset(urls, shardshuffle=False, nodesplitter=None).shuffle(100, seed=epoch)
        images = images.decode("pil").to_tuple("jpg", "cls").map_tuple(lambda image: transform(image.convert("RGB")))
        return iter(torch.utils.data.DataLoader(images, batch, num_workers=workers))

    return batches


def datasets_arm(folder: Path, batch: int, repeated: Any, transform: Any) -> Arm:
    import datasets
    import torch

    paths = sorted((folder / "images" / "train").rglob("*.jpg"))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {
        "image": [{"bytes": path.read_bytes(), "path": None} for path in paths],
        "label": [int(path.parent.name[5:]) for path in paths],
    }
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(folder / "hugging_face"))

    def transformed(rows: dict[str, Any]) -> dict[str, Any]:
        return {"image": [transform(i.convert("RGB")) for i in rows["image"]], "label": rows["label"]}

    def collate(rows: list[Any]) -> Any:
        return torch.stack([row["image"] for row in rows]), torch.tensor([row["label"] for row in rows])

    def batches(epoch: int, workers: int, passes: int) -> Iterator[Any]:
        torch.manual_seed(epoch)
        images = datasets.load_from_disk(str(folder / "hugging_face")).with_transform(transformed)
        images = torch.utils.data.ConcatDataset([images] * passes)
        loader = torch.utils.data.DataLoader(images, batch, shuffle=True, num_workers=workers, collate_fn=collate)
        return iter(loader)

    return batches


def dali_gpu_arm(folder: Path, batch: int, repeated: Any, transform: Any) -> Arm:
    """Decoded, cropped, resized and normalised on the GPU (nvJPEG)."""
    return _dali(folder, batch, on_gpu=True)


def dali_arm(folder: Path, batch: int, repeated: Any, transform: Any) -> Arm:
    return _dali(folder, batch, on_gpu=False)


def _dali(folder: Path, batch: int, on_gpu: bool) -> Arm:
    from nvidia.dali import fn, pipeline_def, types

    mean, std = ([255 * v for v in values] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    decoder, device = ("mixed", 0) if on_gpu else ("cpu", None)

    @pipeline_def
    def pipeline() -> Any:
        data, labels = fn.readers.file(
            file_root=str(folder / "images" / "train"), random_shuffle=True, initial_fill=500
        )
        images = fn.decoders.image_random_crop(data, device=decoder, random_area=[0.08, 1.0])
        images = fn.resize(images, size=(224, 224), interp_type=types.INTERP_TRIANGULAR, antialias=True)
        images = fn.crop_mirror_normalize(images, mean=mean, std=std, mirror=fn.random.coin_flip())
        return images, labels

    def batches(epoch: int, workers: int, passes: int) -> Iterator[Any]:
        threads = max(workers, 1)
        made = pipeline(batch_size=batch, num_threads=threads, device_id=device, seed=epoch, prefetch_queue_depth=2)
        made.build()
        for _ in range(passes * sum(1 for _ in (folder / "images" / "train").rglob("*.jpg")) // batch):
            yield made.run()

    return batches
