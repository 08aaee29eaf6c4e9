"""Text from a trained model: the cache changes nothing, batches change nothing, and every option does what it says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Command
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import DataError, ModelError, UsageError
from flatout.data.fitted.device import DevicePart
from flatout.data.fitted.text_pieces import text_pieces
from flatout.data.fitted.token_rows import TextCode
from flatout.data.fitted.tokenizer import Tokenizer
from flatout.engine.generation.choosing import sampled
from flatout.engine.generation.contexts import CachedTexts, WholeTexts, context_start
from flatout.engine.generation.options import GenerateOptions
from flatout.engine.generation.prompts import generated
from flatout.engine.generation.stopping import HeldText
from flatout.engine.generation.writing import write_texts
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.models.gpt import GPT
from flatout.objectives.inputs import Inputs
from flatout.plan import make as planned

WORDS = "to be or not to be, that is the question:\nwhether 'tis nobler in the mind to suffer\n"


def lively(window: int = 12, layers: int = 3, vocabulary: int = 23, seed: int = 0) -> GPT:
    """Untrained, with weights large enough that the next token depends on all tokens before it."""
    torch.manual_seed(seed)
    model = GPT(vocabulary, window, layers, heads=2, width=16, dropout=0.3, tied=False, bias=True)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    return model.eval()


def made(model: GPT, prompts: list[list[int]], cached: bool, options: GenerateOptions) -> list[list[int]]:
    whole = WholeTexts(model, Inputs(), DevicePart(), model.window, model.tokens.num_embeddings, "fp32")
    source: Any = CachedTexts(model, whole, options.tokens) if cached else whole
    code = TextCode(model.tokens.num_embeddings)
    found: list[list[int]] = generated(
        prompts, code, lambda ids, text: write_texts(source, ids, options, text, exact=True, say=lambda line: None),
        stream=False, stops=False,
    )  # fmt: skip
    return found


def prompts_of(lengths: list[int], vocabulary: int = 23) -> list[list[int]]:
    drawn = torch.Generator().manual_seed(1)
    return [torch.randint(vocabulary, (length,), generator=drawn).tolist() for length in lengths]


@pytest.mark.parametrize(
    "options", [GenerateOptions(40, greedy=True), GenerateOptions(40, temperature=1.3, top_k=9, top_p=0.9)]
)
def test_the_cache_and_the_batch_change_no_token(options: GenerateOptions) -> None:
    model, prompts = lively(), prompts_of([1, 3, 12, 13, 7, 7, 30, 2])  # shorter and longer than the window of 12
    together = made(model, prompts, True, options)
    assert together == made(model, prompts, False, options)
    assert all(len(ids) == 40 for ids in together) and len({tuple(ids) for ids in together}) > 4
    if options.greedy:
        for prompt, wanted in zip(prompts, together, strict=True):
            assert made(model, [prompt], True, options)[0] == wanted


def test_a_greedy_text_is_what_the_model_itself_says() -> None:
    model, options = lively(window=64), GenerateOptions(30, greedy=True)
    for prompt, found in zip(prompts := prompts_of([1, 9, 4]), made(model, prompts, True, options), strict=True):
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(30):
                ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        assert found == ids[len(prompt) :]


def test_ties_are_broken_alike_with_and_without_the_cache() -> None:
    model = lively()
    with torch.no_grad():  # tokens 2k and 2k+1 differ by less than rounding
        model.head.weight[1::2] = model.head.weight[:-1:2] * (1 + 1e-7)
    prompts, options = prompts_of([5, 1, 11]), GenerateOptions(15, greedy=True)
    assert made(model, prompts, True, options) == made(model, prompts, False, options)
    assert made(model, prompts, True, options)[1:2] == made(model, prompts[1:2], True, options)


@pytest.mark.parametrize("window", [1, 2, 7, 64])
def test_the_context_never_exceeds_the_window(window: int) -> None:
    starts = [context_start(length, window) for length in range(1, 300)]
    assert starts == sorted(starts)
    for length, start in enumerate(starts, 1):
        assert window // 2 < length - start <= window or (start == 0 and length <= window)


def test_a_window_of_one_token() -> None:
    model, options = lively(window=1), GenerateOptions(6, greedy=True)
    assert made(model, [[3], [1, 2]], True, options) == made(model, [[3], [1, 2]], False, options)


def test_choices_follow_the_probabilities() -> None:
    odds = torch.tensor([0.5, 0.3, 0.15, 0.05])
    draws = torch.linspace(0, 1, 2001, dtype=torch.float64)[:-1]

    def shares(**how: Any) -> dict[int, float]:
        found = Counter(sampled(odds.log().expand(len(draws), -1), draws, GenerateOptions(**how)))
        return {token: count / len(draws) for token, count in sorted(found.items())}

    assert shares(temperature=1.0) == pytest.approx({0: 0.5, 1: 0.3, 2: 0.15, 3: 0.05}, abs=1e-3)
    assert shares(temperature=1.0, top_k=2) == pytest.approx({0: 0.625, 1: 0.375}, abs=1e-3)
    assert shares(temperature=1.0, top_p=0.81) == pytest.approx({0: 0.5 / 0.95, 1: 0.3 / 0.95, 2: 0.15 / 0.95}, abs=1e-3)
    assert shares(temperature=1.0, top_p=0.01) == {0: 1.0}
    assert shares(temperature=0.5)[0] == pytest.approx(0.25 / (0.25 + 0.09 + 0.0225 + 0.0025), abs=1e-3)
    assert sampled(torch.tensor([[0.0, -torch.inf]]), torch.tensor([1.0]), GenerateOptions()) == [0]


def test_text_is_held_back_while_it_may_be_a_stop_text() -> None:
    held = HeldText(["\n\n", "END"])
    assert [held.add(piece) for piece in ("a\n", "b", "E", "N", "X\n")] == [
        ("a", False), ("\nb", False), ("", False), ("", False), ("ENX", False),
    ]  # fmt: skip
    assert held.add("E") == ("\nE"[:1], False) and held.rest() == "E"
    assert held.add("NDless") == ("", True)


def test_pieces_are_whole_characters() -> None:
    code = TextCode(256, in_bytes=True)
    pieces = text_pieces(code, [])
    assert [pieces.add(byte) for byte in "aé€".encode()] == ["a", "", "é", "", "", "€"]
    pieces.add(0xE2)
    assert pieces.rest() == "\ufffd"


def test_pieces_of_a_tokenizer() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    own = tokenizers.Tokenizer(tokenizers.models.BPE())
    own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    own.train_from_iterator([WORDS * 5], trainer)
    tokenizer = Tokenizer.parse(own.to_str().encode(), Path("tokenizer.json"))
    text = "to be, or naïve 日本語 the question"
    ids = tokenizer.encode([text])[0]
    pieces = text_pieces(TextCode(tokenizer.vocabulary, tokenizer=tokenizer), ids[:3])
    before = tokenizer.decode(ids[:3])
    assert before + "".join(pieces.add(token) for token in ids[3:]) + pieces.rest() == text


class Unknown(nn.Module):
    """A model of the user: a recurrent one."""

    def __init__(self, vocabulary: int, window: int) -> None:
        super().__init__()
        self.tokens, self.memory = nn.Embedding(vocabulary, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, vocabulary)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.memory(self.tokens(x))[0])}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gpt-1: the built-in model; gru-1: one of the user; row-1: no text at all."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "words.txt").write_text(WORDS * 12)
    how: dict[str, Any] = {"lr": 1e-2, "batch": 16, "budget": "30 steps", "evaluate": None, "settings": {"device": "cpu"}}
    text = {"text": str(folder / "words.txt"), "window": 16, "stride": 1}
    tiny = {"gpt": {"layers": 2, "heads": 2, "width": 32}}
    vocabulary = len(set(WORDS))
    recipes = {
        "gpt": fo.Recipe(data=text, model=tiny, objective="next_token", **how),
        "gru": fo.Recipe(
            data=fo.data.text(text["text"], window=16), model=Unknown(vocabulary, 16), objective="next_token", **how
        ),
        "row": fo.Recipe(data="digits", model={"mlp": {"hidden": [4]}}, objective="classify", **{**how, "budget": "2 steps"}),
    }
    made_up = Ceilings("cpu", {"fp32": MeasuredRate(1e11, 1e11, 1e11, 5)}, launch_s=MeasuredRate(2e-6, 2e-6, 2e-6, 5))
    for name, recipe in recipes.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planned, "ceilings_of", lambda device, cache, job=None: made_up)
            done = fo.run(recipe, runs=folder / "made", cache=None, planning="off")
        done.path.rename(folder / "made" / f"{name}-1")
        RECIPES[name] = recipe
    return folder / "made"


RECIPES: dict[str, fo.Recipe] = {}


def run_of(runs: Path, name: str) -> fo.Run:
    found = fo.load(f"{name}-1", runs=runs, recipe=RECIPES[name])
    assert isinstance(found, fo.Run)
    return found


def test_a_run_continues_text(runs: Path) -> None:
    run = run_of(runs, "gpt")
    text = run.generate("to be", tokens=8, device="cpu")
    assert isinstance(text, str) and len(text) == 8 and text == run.generate("to be", tokens=8, device="cpu")
    assert run.generate("to be", tokens=8, seed=5, device="cpu") != text
    greedy = run.generate("to be", tokens=11, greedy=True, device="cpu")
    assert greedy == run.generate("to be", tokens=11, temperature=0, use_cache=False, device="cpu")
    pieces = run.generate("to be", tokens=8, stream=True, device="cpu")
    assert not isinstance(pieces, str) and "".join(pieces) == text
    assert torch.is_grad_enabled()


def test_prompts_of_a_list_are_those_of_single_calls(runs: Path) -> None:
    run, prompts = run_of(runs, "gpt"), ["to be", "whether", "q"]
    quiet: Any = {"tokens": 20, "device": "cpu", "say": lambda line: None}
    texts = run.generate(prompts, seed=3, **quiet)
    assert texts == [run.generate(prompt, seed=3 + number, **quiet) for number, prompt in enumerate(prompts)]
    streamed = ["", "", ""]
    for number, piece in run.generate(prompts, seed=3, stream=True, **quiet):
        streamed[number] += piece
    assert streamed == texts
    many = run.generate(["to be"] * 70, greedy=True, **quiet)
    assert len(many) == 70 and len(set(many)) == 1


def test_ids_continue_to_ids(runs: Path) -> None:
    run, letters = run_of(runs, "gpt"), sorted(set(WORDS))
    ids = [letters.index(letter) for letter in "to be"]
    how: Any = {"tokens": 5, "greedy": True, "device": "cpu"}
    text = run.generate("to be", **how)
    for given in (ids, torch.tensor(ids)):
        assert "".join(letters[token] for token in run.generate(given, **how)) == text
    assert run.generate([ids, ids[:2]], **how)[0] == run.generate(ids, **how)
    assert list(run.generate(ids, stream=True, **how)) == run.generate(ids, **how)
    with pytest.raises(UsageError, match="stop"):
        run.generate(ids, stop="a", **how)


def test_a_stop_text_ends_a_text(runs: Path) -> None:
    run = run_of(runs, "gpt")
    how: Any = {"tokens": 10, "greedy": True, "device": "cpu"}
    text = run.generate("to be", **how)
    stop = text[4:6]
    assert run.generate("to be", stop=stop, **how) == text[: text.index(stop)]
    assert "".join(run.generate("to be", stop=[stop, "never"], stream=True, **how)) == text[: text.index(stop)]


def test_a_text_longer_than_the_window_is_continued_and_said(runs: Path) -> None:
    run, said = run_of(runs, "gpt"), list[str]()
    long = run.generate("to be, that is the question", tokens=60, greedy=True, say=said.append, device="cpu")
    assert len(long) == 60 and "16 tokens" in said[0] and len(said) == 1
    with pytest.warns(UserWarning, match="16 tokens"):
        run.generate("to be", tokens=40, device="cpu")


def test_a_model_of_the_user_needs_no_cache(runs: Path) -> None:
    run = run_of(runs, "gru")
    how: Any = {"tokens": 9, "greedy": True, "device": "cpu"}
    texts = run.generate(["to be", "whether", "the"], **how)
    assert texts == [run.generate(prompt, **how) for prompt in ("to be", "whether", "the")]


def test_what_is_wrong_is_said(runs: Path) -> None:
    run = run_of(runs, "gpt")
    for wrong in ({"tokens": 0}, {"temperature": -1}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}, {"stop": ""}, {"seed": -1}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            run.generate("to be", **wrong)
    for prompt in ("", [], "to bé", 7, [[]], [99999], [["a"]]):
        with pytest.raises(DataError):
            run.generate(prompt, device="cpu")
    with pytest.raises(UsageError, match="classify"):
        run_of(runs, "row").generate("to be")


def test_a_model_without_logits_for_every_token() -> None:
    whole = WholeTexts(nn.Linear(4, 4), Inputs(), DevicePart(), 8, 23, "fp32")
    whole.model.forward = lambda x: x.float()  # type: ignore[method-assign, assignment]
    with pytest.raises(ModelError, match="vocabulary"):
        list(write_texts(whole, [[1, 2]], GenerateOptions(2), None, exact=True, say=lambda line: None))


def test_the_command_prints_text(runs: Path, flatout: Command) -> None:
    run = run_of(runs, "gpt")
    place = ["--runs", str(runs), "--device", "cpu", "--tokens", "6"]
    answer = flatout("generate", "gpt-1", "to be", *place)
    assert answer.code == 0 and answer.out == "to be" + run.generate("to be", tokens=6, device="cpu") + "\n" and not answer.err
    answer = flatout("generate", "gpt-1", "to be", "whether", *place, "--greedy", "--json", "--stop", r"\n")
    wanted = run.generate(["to be", "whether"], tokens=6, greedy=True, stop="\n", device="cpu")
    assert [one["text"] for one in json.loads(answer.out)["texts"]] == wanted
    answer = flatout("generate", "gpt-1", "to be", *place[:-1], "50")
    assert answer.code == 0 and "16 tokens" in answer.err
    assert flatout("generate", "gpt-1", "to bé", *place).code == 1
    assert flatout("generate", "gpt-1", "to be", *place, "--top-p", "2").code == 2


def test_models_of_transformers_use_their_own(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from flatout.engine.generation.transformers_models import generates_itself, written_by_itself

    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=23, n_positions=32, n_embd=16, n_layer=2, n_head=2, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    assert generates_itself(model)
    for options in (GenerateOptions(9, greedy=True), GenerateOptions(9, temperature=1.0, top_k=5)):
        how: Any = {"window": 32, "precision": "fp32", "use_cache": True, "say": lambda line: None}
        parts = list(written_by_itself(model, [[1, 2, 3], [4]], options, None, **how))
        assert [sum(part.number == number for part in parts) for number in (0, 1)] == [9, 9]
