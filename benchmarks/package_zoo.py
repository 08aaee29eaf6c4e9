"""Models of transformers, timm and torchvision export as graphs with the outputs of their runs, on 256 samples."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence import Report, options
from torch import nn

import flatout as fo
from flatout.packaging.export import export

ROWS = 320
Draw = np.random.Generator
Case = tuple[str, Callable[[], nn.Module], Any, str, Any]  # name, model, data, objective, inputs


def tokens(draw: Draw, length: int, vocabulary: int) -> Any:
    return draw.integers(0, vocabulary, (ROWS, length))


def labels(draw: Draw) -> Any:
    return draw.integers(0, 4, ROWS)


def images(draw: Draw, size: int) -> Any:
    return fo.data.arrays(
        draw.integers(0, 256, (ROWS, 3, size, size), dtype=np.uint8), labels(draw), holdout=0.8, normalize="auto"
    )


def transformers_cases(draw: Draw, small: bool) -> Iterator[Case]:
    if importlib.util.find_spec("transformers") is None:
        print("transformers is not installed")
        return
    import transformers as hf

    width, layers = (64, 2) if small else (768, 12)
    sizes: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4 if small else 12,
                             "intermediate_size": 4 * width}  # fmt: skip
    classified = fo.data.arrays({"x": tokens(draw, 48, 512), "y": labels(draw)}, holdout=0.8)
    bert = hf.BertConfig(vocab_size=512, num_labels=4, **sizes)
    yield "transformers BERT", lambda: hf.BertForSequenceClassification(bert), classified, "classify", {"input_ids": "x"}
    roberta = hf.RobertaConfig(vocab_size=512, num_labels=4, max_position_embeddings=64, pad_token_id=1, **sizes)
    yield (
        "transformers RoBERTa",
        lambda: hf.RobertaForSequenceClassification(roberta),
        classified,
        "classify",
        {"input_ids": "x"},
    )
    ids = tokens(draw, 49, 512)
    text = replace(fo.data.arrays({"x": ids[:, :-1], "y": ids[:, 1:]}, holdout=0.8), vocabulary=512)
    gpt2 = hf.GPT2Config(
        vocab_size=512, n_positions=64, n_embd=width, n_layer=layers, n_head=4 if small else 12, use_cache=False
    )
    yield "transformers GPT-2", lambda: hf.GPT2LMHeadModel(gpt2), text, "next_token", {"input_ids": "x"}
    llama = hf.LlamaConfig(vocab_size=512, max_position_embeddings=64, num_key_value_heads=2, use_cache=False, **sizes)
    yield "transformers Llama", lambda: hf.LlamaForCausalLM(llama), text, "next_token", {"input_ids": "x"}
    vit = hf.ViTConfig(image_size=32, patch_size=8, num_labels=4, **sizes)
    yield "transformers ViT", lambda: hf.ViTForImageClassification(vit), images(draw, 32), "classify", {"pixel_values": "x"}
    sound = fo.data.arrays(draw.normal(size=(ROWS, 1600)).astype("float32"), labels(draw), holdout=0.8)
    waves = {"conv_dim": (32,) * 4, "conv_stride": (5, 2, 2, 2), "conv_kernel": (10, 3, 3, 2), "num_feat_extract_layers": 4}
    wav = hf.Wav2Vec2Config(num_labels=4, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, **waves, **sizes)
    yield "transformers Wav2Vec2", lambda: hf.Wav2Vec2ForSequenceClassification(wav), sound, "classify", {"input_values": "x"}


def vision_cases(draw: Draw) -> Iterator[Case]:
    """Only where a CUDA build of torch is: torchvision's wheel does not load beside a CPU build."""
    if torch.version.cuda is None:
        print("timm and torchvision: only beside a CUDA build of torch")
        return
    import timm
    import torchvision

    data = images(draw, 224)
    for name in ("resnet50", "efficientnet_b0", "vit_b_16", "convnext_tiny", "regnet_y_400mf"):
        yield f"torchvision {name}", partial(torchvision.models.get_model, name, num_classes=4), data, "classify", "x"
    for name in ("resnet18", "mobilenetv3_small_100", "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224"):
        yield f"timm {name}", partial(timm.create_model, name, num_classes=4), data, "classify", "x"


def exported(name: str, make: Callable[[], nn.Module], data: Any, objective: str, inputs: Any, place: Path) -> dict[str, Any]:
    """Trained for one step, because only a finished run is exported."""
    torch.manual_seed(0)
    recipe = fo.Recipe(data=data, model=make(), objective=objective, inputs=inputs, batch=8, lr=1e-4, budget="1 steps",
                       evaluate=None, settings={"device": "cpu"})  # fmt: skip
    run = fo.run(recipe, runs=place / "runs", cache=None, planning="off")
    began_s = time.perf_counter()
    done = export(run, place / name.replace(" ", "-"))
    seconds = time.perf_counter() - began_s
    agreeing = {one.name: one.parity.worst for one in done.measured if one.parity is not None and one.parity.holds}
    left_out = {one.name: one.why_not for one in done.measured if one.why_not is not None}
    return {
        "seconds": seconds,
        "agreeing": agreeing,
        "left_out": left_out,
        "notes": done.notes,
        "code": done.package.card["code"],
    }


def main() -> int:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--only", help="cases whose names contain this")
    asked = parser.parse_args()
    draw = np.random.default_rng(0)
    report = Report(f"package_zoo{f'_{asked.only}' if asked.only else ''}", str(__doc__), torch.device("cpu"))
    missing = 0
    with tempfile.TemporaryDirectory() as temporary:
        for case in (*transformers_cases(draw, small=torch.version.cuda is None), *vision_cases(draw)):
            if asked.only is not None and asked.only not in case[0]:
                continue
            try:
                found = exported(*case, Path(temporary))
            except fo.FlatoutError as error:
                print(f"{case[0]}: {error}")
                missing += 1
                continue
            print(f"{case[0]}: {found}")
            for runtime, worst in found["agreeing"].items():
                report.arm(f"{case[0]}: {runtime}, largest difference", "", [worst])
                report.bar(f"{case[0]}: {runtime}", f"{case[0]}: {runtime}, largest difference", 1e-5, at_least=False)
            report.arm(f"{case[0]}: export", "s", [found["seconds"]])
    report.arm("models that did not export", "", [float(missing)])
    report.bar("models that did not export", "models that did not export", 0, at_least=False)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
