from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from probes.tokens import TokenTexts, visible


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(["x = 12 + 12\n\n    return 中文 12 007"] * 20, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_tokens_read_as_text(tokenizer: Path) -> None:
    texts, made = TokenTexts(tokenizer), Tokenizer.from_file(str(tokenizer))
    ids = made.encode("    return 中文 12").ids
    assert "".join(texts.texts(ids)) == "    return 中文 12"
    assert texts.text(0) == "<|endoftext|>"
    assert texts.text(10**6) == "<1000000>"


def test_half_a_character_is_shown_as_bytes(tokenizer: Path) -> None:
    made = Tokenizer.from_file(str(tokenizer))
    lead = made.token_to_id("ä")
    assert TokenTexts(tokenizer).text(lead) == r"\xe4"


def test_numbers_are_found(tokenizer: Path) -> None:
    texts = TokenTexts(tokenizer)
    numbers = {texts.text(token): value for token, value in texts.numbers().items()}
    assert numbers[" 12"] == 12
    assert numbers["7"] == 7
    assert not {"007", "00", "07"} & numbers.keys()


def test_without_a_tokenizer_the_id_is_the_text() -> None:
    assert TokenTexts(None).texts([3, 5]) == ["3", "5"]
    assert TokenTexts(None).numbers() == {}


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer file"):
        TokenTexts(path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        TokenTexts(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "␣the"),
        ("\n\n", "⏎⏎"),
        ("\t\x00", r"⇥\u0000"),
        ("\n" + " " * 12, "⏎␣\N{MULTIPLICATION SIGN}12"),
        ("中\u200b\u202e", r"中\u200b\u202e"),
    ],
)
def test_nothing_stays_invisible(text: str, shown: str) -> None:
    assert visible(text) == shown
