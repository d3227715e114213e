"""Models and texts that several test files share.  Shapes in attnlib's signatures are checked while tests run."""

import os

from jaxtyping import install_import_hook

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported
install_import_hook("attnlib", "beartype.beartype")

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from attnlib import load_corpus, load_model

torch.set_num_threads(1)  # the models and texts here are too small to be shared by threads

SIZES = dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32)
TINY = {  # model_type: configuration of a small model with random weights
    "bert": transformers.BertConfig(**SIZES, max_position_embeddings=64),
    "electra": transformers.ElectraConfig(**SIZES, embedding_size=16, max_position_embeddings=64),
    "roberta": transformers.RobertaConfig(**SIZES, max_position_embeddings=66),
    "xlm-roberta": transformers.XLMRobertaConfig(**SIZES, max_position_embeddings=66),
    "camembert": transformers.CamembertConfig(**SIZES, max_position_embeddings=66),
    "distilbert": transformers.DistilBertConfig(
        dim=24, n_layers=3, n_heads=4, hidden_dim=32, max_position_embeddings=64
    ),
    "mpnet": transformers.MPNetConfig(**SIZES, max_position_embeddings=66),
    "gpt2": transformers.GPT2Config(n_embd=24, n_layer=3, n_head=4, n_positions=64),
}


@pytest.fixture(scope="session")
def passages():
    return load_corpus("passages")


@pytest.fixture(scope="session")
def minilm():
    return load_model("minilm", device="cpu")


def save_tokenizer(folder, texts, *, adds_special_tokens: bool) -> int:
    """Train a small byte-level tokenizer, save it in ``folder`` and return its vocabulary size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>"]  # RoBERTa counts positions from its padding index, 1
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    if adds_special_tokens:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
        named |= {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    fast.save_pretrained(folder)
    return len(fast)


def save_tiny(folder, family: str, texts) -> None:
    """Save a tiny random model of a family, with a tokenizer, as a person would keep one in a folder."""
    config = TINY[family]
    config.vocab_size = save_tokenizer(folder, texts, adds_special_tokens=family != "gpt2")
    torch.manual_seed(1)
    net = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in net.parameters():  # larger than usual, so that heads differ clearly
            parameter.add_(0.2 * torch.randn_like(parameter))
    net.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory, passages):
    """A function from a family's name to the folder of its tiny model."""
    root = tmp_path_factory.mktemp("tiny")

    def folder(family: str):
        if not (root / family).exists():
            save_tiny(root / family, family, [text.text for text in passages])
        return root / family

    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    """A function from a family's name to its tiny model, loaded."""
    loaded = {}

    def load(family: str):
        if family not in loaded:
            loaded[family] = load_model(str(tiny_folder(family)), device="cpu")
        return loaded[family]

    return load
