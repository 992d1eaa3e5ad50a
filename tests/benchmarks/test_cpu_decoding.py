from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

DIM, FF, LAYERS, VOCAB = 8, 12, 1, 17


@pytest.fixture
def decoding(script):
    return script("cpu_decoding")


@pytest.fixture
def contenders(contenders_of):
    return contenders_of("cpu_contenders")


@pytest.fixture
def folder(tmp_path):
    """A Marian model by transformers."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MarianConfig(
        vocab_size=VOCAB, d_model=DIM, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=FF, decoder_ffn_dim=FF, activation_function="relu",
        max_position_embeddings=32, scale_embedding=True, pad_token_id=VOCAB - 1, eos_token_id=0,
        decoder_start_token_id=VOCAB - 1, forced_eos_token_id=None,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        model.final_logits_bias.normal_()
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    (tmp_path / "config.json").write_text(config.to_json_string())
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path, model


@pytest.mark.parametrize("beams", [1, 3])
def test_our_contender_writes_what_the_model_of_the_folder_writes(beams, contenders, folder):
    path, model = folder
    sources = [[5, 6, 7, 8, 0], [9, 1, 14, 3, 0]]
    case = SimpleNamespace(folder=path, src=sources, new=6, beams=beams, threads=1)
    assert [(name, made.name) for name, made in contenders] == [
        ("cpu-translate", "saccade fp32"),
        ("cpu-translate", "saccade int8"),
    ]
    one, short = (made() for _, made in contenders)
    one.build(case)
    short.build(case)
    expected = model.generate(
        torch.tensor(sources), max_new_tokens=6, min_new_tokens=6, num_beams=beams, do_sample=False, length_penalty=0.0,
    )  # fmt: skip

    assert one.step() == expected[:, 1:].tolist()
    assert [len(row) for row in short.step()] == [6, 6]


def test_ratios_are_ours_to_the_same_kind_of_peer_and_to_the_floor(decoding):
    size = SimpleNamespace(vocab=100, dim=10, layers=2, ff=20)
    case = SimpleNamespace(label="batch 1, greedy", src=[[1] * 5], new=4, beams=1, size=size)
    speed = SimpleNamespace(bandwidth=1e6, rates={"float32": 1e9, "int8": 1e9})
    timed = [
        {"contender": "CTranslate2 float32", "ms": 40.0, "vs_first": 1.0, "same": 1.0},
        {"contender": "saccade fp32", "ms": 20.0, "vs_first": 2.0, "same": 1.0},
        {"contender": "CTranslate2 int8", "ms": 10.0, "vs_first": 4.0, "same": 0.9},
        {"contender": "saccade int8", "ms": 12.5, "vs_first": 3.2, "same": 0.8},
    ]

    rows = decoding.compare_speeds(timed, case, speed)

    assert [(row["value"], row["peer_value"], row["ratio"]) for row in rows[::2]] == [(200, 100, 2.0), (320, 400, 0.8)]
    # A step reads 2 (6 x 100 + 2 x 200) + 1,000 weights: 12 ms in float32; before that, products of five tokens.
    assert rows[1]["ratio"] == pytest.approx((4 * 12 + 2 * 5 * 2 * 1000 / 1e6) / 20, abs=0.001)


def test_without_all_times_there_is_no_result(decoding):
    with pytest.raises(SystemExit, match="saccade fp32: boom"):
        decoding.compare_speeds(
            [{"contender": "saccade fp32", "error": "boom"}], SimpleNamespace(src=[[1]], new=1), None
        )
