"""What names of variables promise. Those of real programs are in `tests/data/host_variables.toml`."""

from __future__ import annotations

import pytest

from aisotools.workspace.variable_names import may_search, promises_code, split_name

CODE = """
ACME_OPENER ACME_VIEWER ACME_BROWSER ACME_EXTERNAL_DIFF ACMEDIFF ACME_MERGE ACMEMERGE DIFFPROG MERGETOOL
ACMEEDIT ACME_PLUG ACME_RCFILE ACME_CONFIGFILES ACME_COMPLETION_DIR ACME_THING_USER_FILE ACME_THING_USER_DIR
LLM_USER_PATH ACME_CUSTOM ACME_PORTABLE ACMETOOLS_TCTI ACMEPKG_OVERLAY ACME_PANDOC ACME_NODEJS_PATH
CHROME_PATH ACMEENV_ROOT ACMEENV_PATHS_ROOT LIBACME LIBACME_PATH TEXACME GOPROXY ACME_PROXY ACME_LOCUSTFILE
ACMESCRIPTS ACMEMODULE ACME_STARTUP ACME_PRELOAD ACME_HOOKS INIT_ACME
"""
DATA = """
TRANSCRIPT_FILE TRANSCRIPTS_DIR MANUSCRIPT_DIR SUBSCRIPTS SUPERSCRIPT_FILE CABIN_FILE ROBIN_DIR BILIRUBIN_CSV
CREDIT_FILE CREDITS_CSV DOWNLOADER_DIR UPLOADER_DIR MARC_FILE ARC_DIR ORC_FILE SEASHELLS_DIR SCREWDRIVER
TESSDATA_PREFIX RUNNER_WORKSPACE ACME_WORKSPACE DIFF_FILE IMAGE_DIFF MERGE_DIR MERGED_FILE USER_FILE USER_DIR
MODEL_USER_DIR LIBRISPEECH_DIR LIBERTY_FILE LIBSVM_FILE TEXT_DIR TEXTURES_DIR TEXAS_CSV TEXFILE CUSTOM_DIR
PROXY_LIST_FILE PLUGS_CSV DATASET_ROOT DEVENV_ROOT DICPATH X509_USER_PROXY CODE_BASE
"""


@pytest.mark.parametrize("name", CODE.split())
def test_words_ends_and_compounds_of_code_promise_it(name: str) -> None:
    assert promises_code(name)


@pytest.mark.parametrize("name", DATA.split())
def test_names_of_data_promise_none(name: str) -> None:
    assert not promises_code(name)
    assert not may_search(name)


def test_numbers_and_small_letters_do_not_matter() -> None:
    assert split_name("acme_2_Path__5") == ["ACME", "PATH"]
    assert promises_code("acme_Plugin_2_dir")
