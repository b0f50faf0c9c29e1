"""The proxy's own fixtures (a Triton whose answers are a script, proxies in front of it), and a tokenizer of words."""

import itertools
import string

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.checkpoint.conftest import tiny_llama
from tests.cli.conftest import trtkit
from tests.proxy.conftest import fake, serve, tokenizer_file
from trtkit.bench.filler import Filler

__all__ = ["fake", "serve", "tiny_llama", "tokenizer_file", "trtkit"]


@pytest.fixture(scope="session")
def words_file(tmp_path_factory):
    """A tokenizer for which a word of two letters is a token."""
    words = map("".join, itertools.product(string.ascii_lowercase, repeat=2))
    vocabulary = {f"▁{word}": n for n, word in enumerate(["unk", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="▁unk"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def filler(words_file):
    return Filler.load(words_file)
