"""lm-eval over HTTP: its log-likelihoods are those of the model."""

import json
import os
import subprocess
import sys

import pytest
from serving import serving

QUESTIONS = [("A river is a large natural", [" stream of water", " piece of money", " season"], 0),
             ("Winter is the coldest", [" doctor", " season of the year"], 1),
             ("Money is the most common medium of", [" exchange", " islands"], 0),
             ("An island is a land mass that is", [" hired to perform a job", " surrounded by water"], 1)]
TASK = """
task: endings
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


@pytest.fixture(scope="module")
def server():
    with serving("--ctx", "4k") as running:
        yield running


def log_likelihood(server, question, ending):
    before = server.post("/tokenize", {"content": question}).json()["count"]
    body = {"prompt": question + ending, "max_tokens": 0, "echo": True, "logprobs": 1}
    told = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    return sum(told["token_logprobs"][before:])


def test_endings(server, tmp_path):
    data = tmp_path / "endings.jsonl"
    data.write_text("".join(json.dumps(dict(zip(("question", "choices", "answer"), q))) + "\n" for q in QUESTIONS))
    (tmp_path / "endings.yaml").write_text(TASK.format(file=data))
    env = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    run = subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args",
                          f"model=hy3-tiny,base_url={server.url}/v1/completions,tokenizer_backend=remote",
                          "--tasks", "endings", "--include_path", tmp_path, "--output_path", tmp_path / "out",
                          "--log_samples"], env=env, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stderr
    (samples,) = (tmp_path / "out").rglob("samples_endings_*.jsonl")
    found = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(found) == len(QUESTIONS)
    for sample in found:
        question, choices, answer = QUESTIONS[sample["doc_id"]]
        likely = [float(r[0]) for r in sample["filtered_resps"]]
        assert likely == pytest.approx([log_likelihood(server, question, c) for c in choices], abs=1e-9)
        assert sample["acc"] == float(likely.index(max(likely)) == answer)
