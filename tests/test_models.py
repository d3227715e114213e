"""Loading models: names, folders, the hub, checks of the weights, the untrained control, and refusals."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import torch
from conftest import TINY
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors.torch import load_file

from attnlib import load_model, models
from attnlib.models import PUBLISHED, short_name, untrained_copy

SHA256 = PUBLISHED["minilm"].sha256


@pytest.fixture
def bert_copy(tiny_folder, tmp_path):
    """A copy of the tiny BERT's folder, to be damaged."""
    return Path(shutil.copytree(tiny_folder("bert"), tmp_path / "bert"))


def test_minilm_is_the_published_file_and_ready_to_read(minilm):
    assert (minilm.n_layers, minilm.n_heads, minilm.d_head, minilm.max_tokens) == (6, 12, 32, 512)
    assert minilm.name == "minilm" and minilm.device.type == "cpu" and not minilm.net.training
    provenance = dict(minilm.provenance)
    assert provenance.pop("sha256") == SHA256
    assert provenance == {
        "name": "minilm",
        "id": "sentence-transformers/all-MiniLM-L6-v2",
        "source": "package",
        "packaged": True,
        "revision": None,
        "fine_tuned_for": "sentence embeddings",
        "untrained": False,
        "sha256_is_published": True,
        "dtype": "float32",
        "device": "cpu",
    }


@pytest.mark.parametrize("family", TINY)
def test_a_model_in_a_folder(tiny, tiny_folder, family):
    model = tiny(family)
    assert (model.n_layers, model.n_heads, model.d_head, model.max_tokens) == (3, 4, 6, 64)
    assert model.name == family
    assert (
        model.provenance["source"] == "folder" and model.provenance["fine_tuned_for"] == "not known"
    )
    assert not model.provenance["sha256_is_published"] and len(model.provenance["sha256"]) == 64


def test_the_untrained_control_is_the_same_architecture_with_seeded_weights(minilm):
    a, b, c = (load_model("minilm", device="cpu", untrained=True, seed=seed) for seed in (0, 0, 1))
    assert a.name == "minilm-untrained" and a.provenance["untrained"] and a.provenance["seed"] == 0
    assert "sha256" not in a.provenance and not a.net.training
    for (name, ours), (_, again), (_, other), (_, trained) in zip(
        *(model.net.state_dict().items() for model in (a, b, c, minilm)), strict=True
    ):
        assert torch.equal(ours, again), name
        assert ours.shape == trained.shape
        if "dense.weight" in name:
            assert not torch.equal(ours, other) and not torch.equal(ours, trained)


def test_an_untrained_copy_is_the_model_that_loading_untrained_gives(minilm):
    ours, loaded = (
        untrained_copy(minilm, 3),
        load_model("minilm", device="cpu", untrained=True, seed=3),
    )
    for (name, a), b in zip(
        ours.net.state_dict().items(), loaded.net.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name
    assert ours.name == loaded.name and ours.provenance == loaded.provenance
    assert not ours.net.training and minilm.provenance["untrained"] is False


def test_loading_an_untrained_model_leaves_the_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_model("minilm", device="cpu", untrained=True)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("untrained", [False, True])
def test_the_number_format_is_as_asked(untrained):
    model = load_model("minilm", device="cpu", dtype="bfloat16", untrained=untrained)
    assert model.net.dtype == torch.bfloat16 and model.provenance["dtype"] == "bfloat16"


def test_auto_takes_the_best_device(monkeypatch):
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert models._device("auto").type == expected
    with pytest.raises(
        ValueError, match="device='cuda:1' is not available here: choose 'auto' or one of cpu"
    ):
        load_model("minilm", device="cuda:1")


def test_an_unknown_number_format_is_refused():
    with pytest.raises(ValueError, match="dtype='int8' is unknown: choose 'auto', 'float32'"):
        load_model("minilm", dtype="int8")


def test_names_for_files(tmp_path):
    assert short_name(str(tmp_path)) == tmp_path.name
    assert short_name("someone/some-model") == "someone--some-model"


# --- weights ------------------------------------------------------------------------------------


def test_weights_that_are_not_the_published_ones_are_refused(bert_copy, monkeypatch):
    monkeypatch.setattr(models, "_from_packages", lambda published: bert_copy)
    with pytest.raises(
        ValueError, match=rf"weights of 'minilm' in .* the published file has {SHA256}: delete"
    ):
        load_model("minilm", device="cpu")


def test_weights_of_another_architecture_are_refused(bert_copy):
    config = json.loads((bert_copy / "config.json").read_text())
    (bert_copy / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(
        ValueError, match=r"lack 16 tensors, encoder.layer.3.* config and weights match"
    ):
        load_model(str(bert_copy), device="cpu")


def test_weights_of_other_sizes_or_cut_short_are_refused(bert_copy):
    config = json.loads((bert_copy / "config.json").read_text())
    (bert_copy / "config.json").write_text(json.dumps(config | {"hidden_size": 48}))
    with pytest.raises(ValueError, match=r"weights of model .* cannot be read .* do not match"):
        load_model(str(bert_copy), device="cpu")
    (bert_copy / "config.json").write_text(json.dumps(config))
    weights = (bert_copy / "model.safetensors").read_bytes()
    (bert_copy / "model.safetensors").write_bytes(weights[:-100])
    with pytest.raises(ValueError, match=r"weights of model .* cannot be read .* damaged"):
        load_model(str(bert_copy), device="cpu")


def test_a_known_model_is_known_by_its_hub_id_too():
    model = load_model(PUBLISHED["minilm"].hub_id, device="cpu")
    assert model.name == "minilm" and model.provenance["sha256_is_published"]


def test_pickled_weights_are_refused(bert_copy):
    weights = load_file(bert_copy / "model.safetensors")
    (bert_copy / "model.safetensors").unlink()
    torch.save(weights, bert_copy / "pytorch_model.bin")
    with pytest.raises(
        ValueError, match=r"has no safetensors weights, .* refused: convert them .*save_pretrained"
    ):
        load_model(str(bert_copy), device="cpu")


def test_weights_in_several_files_have_one_checksum(bert_copy, tiny):
    tiny("bert").net.save_pretrained(bert_copy, max_shard_size="20KB")
    (bert_copy / "model.safetensors").unlink(missing_ok=True)
    assert len(list(bert_copy.glob("*.safetensors"))) > 1
    model = load_model(str(bert_copy), device="cpu")
    assert torch.equal(
        model.net.embeddings.word_embeddings.weight,
        tiny("bert").net.embeddings.word_embeddings.weight,
    )
    assert len(model.provenance["sha256"]) == 64


def test_a_family_without_a_known_place_for_head_outputs_is_refused(bert_copy):
    config = json.loads((bert_copy / "config.json").read_text())
    (bert_copy / "config.json").write_text(json.dumps(config | {"model_type": "albert"}))
    with pytest.raises(
        ValueError, match=r"family 'albert', whose head outputs cannot be located.*bert, electra"
    ):
        load_model(str(bert_copy), device="cpu")


def test_a_folder_without_a_model_is_refused(tmp_path, bert_copy):
    with pytest.raises(ValueError, match=r"holds no model and tokenizer that can be read"):
        load_model(str(tmp_path))
    (bert_copy / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"holds no model and tokenizer that can be read"):
        load_model(str(bert_copy))


def test_a_tokenizer_without_offsets_is_refused(bert_copy, monkeypatch):
    class Slow:
        is_fast = False

    monkeypatch.setattr(models.AutoTokenizer, "from_pretrained", lambda *args, **kwargs: Slow())
    with pytest.raises(ValueError, match="gives no character offsets"):
        load_model(str(bert_copy), device="cpu")


def test_loading_leaves_the_library_as_talkative_as_it_was(minilm):
    log = models.transformers.utils.logging
    for switch, shown in ((log.disable_progress_bar, False), (log.enable_progress_bar, True)):
        switch()
        load_model("minilm", device="cpu")
        assert log.is_progress_bar_enabled() is shown


# --- models in packages -------------------------------------------------------------------------


class Part:
    """A file of an installed package, as importlib.metadata shows it."""

    def __init__(self, path: Path):
        self.name, self.path = path.name, path

    def read_binary(self) -> bytes:
        return self.path.read_bytes()


class Distribution:
    def __init__(self, files):
        self.files = files


def test_a_model_in_five_packages_is_joined_once(tiny_folder, tmp_path, monkeypatch):
    archive = tmp_path / "model.zip"
    with zipfile.ZipFile(archive, "w") as whole:
        whole.writestr("all-mpnet-base-v2/", "")
        for file in tiny_folder("mpnet").iterdir():
            whole.write(file, f"all-mpnet-base-v2/{file.name}")
        whole.writestr("all-mpnet-base-v2/1_Pooling/config.json", "{}")
    data = archive.read_bytes()
    size = len(data) // 5 + 1
    parts = {}
    for number, package in enumerate(PUBLISHED["mpnet"].packages):
        path = tmp_path / f"model.zip.{number + 1:03d}"
        path.write_bytes(data[number * size : (number + 1) * size])
        parts[package] = Distribution([Part(tmp_path / "METADATA"), Part(path)])
    monkeypatch.setattr(metadata, "distribution", lambda package: parts[package])
    monkeypatch.setenv("ATTNLIB_CACHE", str(tmp_path / "cache"))
    weights = tiny_folder("mpnet") / "model.safetensors"
    sha256 = models._checked_weights(tiny_folder("mpnet"), "mpnet", None)["sha256"]
    monkeypatch.setitem(PUBLISHED, "mpnet", models.Published(
        PUBLISHED["mpnet"].hub_id, None, sha256, "a test", PUBLISHED["mpnet"].packages))  # fmt: skip

    model = load_model("mpnet", device="cpu")
    assert (
        model.name == "mpnet"
        and model.provenance["packaged"]
        and model.provenance["sha256_is_published"]
    )
    joined = tmp_path / "cache" / "all-mpnet-base-v2"
    assert (joined / "model.safetensors").read_bytes() == weights.read_bytes()
    assert not list(joined.glob("*.part"))
    parts.clear()  # the packages are not needed again
    assert load_model("mpnet", device="cpu").n_layers == 3


def test_a_model_whose_packages_are_not_installed_is_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLIB_CACHE", str(tmp_path))

    def absent(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(
        ValueError,
        match=r"'mpnet' is not here.*HF_HUB_OFFLINE is set.*minilm, mpnet can be installed",
    ):
        load_model("mpnet")


# --- the hub ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["bert-base-uncased", "minilmm", "someone/some-model", "not a/valid//id"]
)
def test_without_a_hub_the_models_that_need_none_are_named(name, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError) as error:
        load_model(name)
    assert repr(name) in str(error.value) and "minilm, mpnet, bert-base-uncased" in str(error.value)


def test_a_hub_that_hangs_is_given_up_within_ten_seconds(tmp_path):
    server = socket.create_server(("127.0.0.1", 0))  # accepts, and never answers
    environment = os.environ | {
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}",
        "HF_HOME": str(tmp_path),
    }
    code = (
        "import time, attnlib; start = time.time()\ntry: attnlib.load_model('someone/some-model')\n"
    )
    code += "except ValueError as error: print(round(time.time() - start, 1), error)"
    with server:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
    seconds, message = done.stdout.split(" ", 1)
    assert float(seconds) < 10
    assert "the hub cannot be reached (no answer within 8 s)" in message and "minilm" in message


@pytest.fixture
def hub_says(monkeypatch, tmp_path):
    """A function that makes the hub, if asked, do what another function does; nothing is in the hub's cache."""

    def say(answer) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(HfApi, "model_info", lambda self, *args, **kwargs: answer())

    return say


def raising(error: Exception):
    """A function that raises ``error``."""

    def fail() -> None:
        raise error

    return fail


def test_a_model_from_the_hub(tiny_folder, tmp_path, monkeypatch, hub_says):
    asked = {}

    def snapshot_download(hub_id, **options):
        asked.update(options, hub_id=hub_id)
        folder = tmp_path / options["revision"]
        shutil.copytree(tiny_folder("bert"), folder, dirs_exist_ok=True)
        return str(folder)

    files = [SimpleNamespace(rfilename=name) for name in ("config.json", "model.safetensors")]
    info = SimpleNamespace(sha="0123abc", siblings=files)
    hub_says(lambda: info)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    model = load_model("someone/some-model", device="cpu")
    assert model.name == "someone--some-model"
    assert model.provenance["revision"] == "0123abc" and model.provenance["source"] == "hub"
    assert (
        asked["allow_patterns"] == ["*.json", "*.txt", "*.model", "*.safetensors"]
        and not asked["local_files_only"]
    )
    info.siblings = files[:1]
    with pytest.raises(
        ValueError, match="someone/some-model on the hub has no safetensors weights"
    ):
        load_model("someone/some-model", device="cpu")


def test_a_hub_that_says_nothing_is_given_up(monkeypatch, hub_says):
    monkeypatch.setattr(models, "HUB_PATIENCE_S", 0.05)
    hub_says(lambda: time.sleep(0.5))
    with pytest.raises(ValueError, match=r"cannot be reached \(no answer within 0.05 s\)"):
        load_model("someone/some-model")


def test_a_hub_that_refuses_the_connection_is_quoted(hub_says):
    hub_says(raising(ConnectionError("refused")))
    with pytest.raises(ValueError, match=r"cannot be reached \(ConnectionError: refused\)"):
        load_model("someone/some-model")


def test_a_model_that_the_hub_does_not_have(hub_says):
    response = httpx.Response(404, request=httpx.Request("GET", "http://127.0.0.1"))
    hub_says(raising(RepositoryNotFoundError("no", response=response)))
    with pytest.raises(
        ValueError,
        match="Model 'minilmm' is unknown: no such folder, and the hub shows no public minilmm",
    ):
        load_model("minilmm")
