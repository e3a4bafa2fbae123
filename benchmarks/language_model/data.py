"""The tokens of docs/protocol_language_model.md: Linux's source text, as Debian packages it.

    apt-get download linux-source-6.1
    python -m benchmarks.language_model.data --package=linux-source-6.1_*.deb --to=.tokens

Files are drawn, and split into train, validation and test, by the hash of their paths. A byte-level
BPE is trained on files of the first part. The tokens, uint16, are written as one xz file.
"""

import hashlib
import json
import lzma
import pathlib
import re
import subprocess
import tarfile

import numpy as np
from absl import app, flags

from benchmarks.language_model.protocol import FROZEN

PARTS = ("train", "validation", "test")
_WANTED = re.compile(r"[^/]+/(?!drivers/gpu/drm/amd/include/).*\.(c|h|rst|txt)$")
_FILTER = {"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 1, "pb": 1}  # pairs of bytes


def load(folder: str) -> dict[str, np.ndarray]:
    """Part -> its tokens, of which the last is only predicted.

    Raises:
        ValueError: if they are not those of the protocol.
    """
    data = lzma.decompress((pathlib.Path(folder) / "tokens.xz").read_bytes())
    found = hashlib.sha256(data).hexdigest()
    if found != FROZEN["data"]["sha256"]:
        raise ValueError(f"the tokens in {folder} have the hash {found}, not the protocol's")
    sizes = [FROZEN["data"][part] * FROZEN["model"]["tokens"] + 1 for part in PARTS]
    parts = np.split(np.frombuffer(data, "<u2"), np.cumsum(sizes)[:-1])
    return dict(zip(PARTS, parts, strict=True))


def examples(tokens: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `length` tokens one after the other, and for each token the next one."""
    return tokens[:-1].reshape(-1, length), tokens[1:].reshape(-1, length)


def part_of(path: str) -> str | None:
    """The part of a file by its path, which says it alone; None for a file that is not drawn."""
    drawn = FROZEN["data"]
    number = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big")
    if not _WANTED.match(path) or number % 1000 >= drawn["permille_of_files"]:
        return None
    split = number // 1000 % 100 // drawn["percent"]
    return {0: "validation", 1: "test"}.get(split, "train")


def texts(package: str) -> dict[str, list[str]]:
    """Part -> the texts of its files, in the order of the hashes of their paths."""
    found: dict[str, dict[bytes, str]] = {part: {} for part in PARTS}
    command = (
        f"dpkg-deb --fsys-tarfile {package} | tar -xO ./usr/src/linux-source-6.1.tar.xz | xz -dc"
    )
    with (
        subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as archive,
    ):
        for file in archive:
            part = part_of(file.name) if file.isfile() else None
            if part:
                data = archive.extractfile(file).read()
                key = hashlib.sha256(file.name.encode()).digest()
                found[part][key] = data.decode(errors="replace")
    return {part: [files[key] for key in sorted(files)] for part, files in found.items()}


def encode(of: dict[str, list[str]]) -> tuple[dict[str, np.ndarray], dict]:
    """Part -> tokens, as many as the protocol says, and what is told of them."""
    import tokenizers

    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        of["train"][:: FROZEN["data"]["tokenizer_every"]],
        vocab_size=FROZEN["model"]["vocabulary"],
        special_tokens=["<end>"],
    )
    parts, told = {}, {"tokenizers": tokenizers.__version__}
    for part, files in of.items():
        wanted = FROZEN["data"][part] * FROZEN["model"]["tokens"] + 1
        rows, size, used, letters = [], 0, 0, 0
        for start in range(0, len(files), 512):
            some = files[start : start + 512]
            for text, row in zip(some, tokenizer.encode_batch(some), strict=True):
                rows.append(np.asarray([0, *row.ids], "<u2"))
                size, letters, used = size + len(rows[-1]), letters + len(text), used + 1
            if size >= wanted:
                break
        if size < wanted:
            raise ValueError(f"{part} has {size} tokens of {wanted}: draw more files")
        parts[part] = np.concatenate(rows)[:wanted]
        told[part] = {"files": used, "tokens": wanted, "letters_a_token": round(letters / size, 3)}
    return parts, told


def main(_):
    """Makes the file, and prints what it holds."""
    args = flags.FLAGS
    parts, told = encode(texts(args.package))
    data = b"".join(parts[part].tobytes() for part in PARTS)
    told["sha256"] = hashlib.sha256(data).hexdigest()
    folder = pathlib.Path(args.to)
    folder.mkdir(parents=True, exist_ok=True)
    packed = lzma.compress(data, format=lzma.FORMAT_XZ, filters=[_FILTER])
    (folder / "tokens.xz").write_bytes(packed)
    print(json.dumps({"package": pathlib.Path(args.package).name, **told, "packed": len(packed)}))


if __name__ == "__main__":
    flags.DEFINE_string("package", None, "Debian's package, as it is downloaded.", required=True)
    flags.DEFINE_string("to", ".tokens", "The folder that gets the file.")
    app.run(main)
