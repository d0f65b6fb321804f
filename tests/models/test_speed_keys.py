"""Keys that only say how a machine computes: channels_last, compile, and the Trainer's precision."""

import copy
import pickle

import pytest
import torch

import ralseg
from ralseg.agents import CreditRegression
from ralseg.models.feature_cache import FeatureCache
from ralseg.models.prediction import Prediction
from ralseg.models.recipe import recipe_of
from ralseg.runtime.checkpoints import read_checkpoint
from support.closed_form import closed_form
from support.data import small_data
from support.games import UNTRAINED, Photograph, acquire, assert_same, everything, game, play, segmenter
from support.layouts import TinyNet

KEYS = {"channels_last": {"channels_last": False}, "compile": {"compile": True}}


def pixels():
    return torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def gradients(network):
    network.zero_grad()
    network.train()
    torch.manual_seed(0)
    network(pixels()).square().mean().backward()
    return torch.cat([weight.grad.flatten() for weight in network.parameters() if weight.grad is not None])


@pytest.fixture
def compiled(monkeypatch):
    """torch.compile without its compiler, which takes minutes; what it was asked to compile."""
    asked = []
    build = torch.nn.Module.compile

    def noted(module, *args, **kwargs):
        asked.append(type(module).__name__)
        build(module, *args, backend="eager", **kwargs)

    monkeypatch.setattr(torch.nn.Module, "compile", noted)
    return asked


@pytest.mark.parametrize("key", KEYS)
def test_results_are_the_same_to_rounding(key, compiled):
    plain, other = (segmenter(dropout=0.0, **options) for options in ({}, KEYS[key]))
    with torch.no_grad():
        logits = plain(pixels())
        assert torch.allclose(logits, other(pixels()), atol=1e-4 * float(logits.abs().max()))
    expected, found = gradients(plain), gradients(other)
    assert torch.allclose(expected, found, atol=1e-4 * float(expected.abs().max()))
    assert compiled == (["TimmUniversalEncoder", "FPNDecoder"] if key == "compile" else [])


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_computes_the_same_way(how, compiled):
    made = segmenter(channels_last=True, compile=True, optimizer=torch.optim.SGD)
    copied = copy.deepcopy(made) if how == "deepcopy" else pickle.loads(pickle.dumps(made))
    assert len(compiled) == 4
    weight = next(weight for weight in copied.net.encoder.parameters() if weight.dim() == 4 and weight.shape[1] > 1)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_a_checkpoint_says_nothing_of_the_machine_that_it_was_made_on(compiled):
    made = recipe_of(segmenter(channels_last=False, compile=True))["init_args"]
    assert not {"channels_last", "compile"} & set(made)
    plain, other = segmenter(), segmenter(channels_last=False, compile=True)
    assert plain.describe() == other.describe()
    other.load_state_dict(plain.state_dict())


# -- the Trainer's precision ---------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch):
    """What each look at images computed in, and what it gave."""
    found, decode = [], ralseg.SmpSegmenter.decode
    passes = []

    def noted(self, features):
        decoded = decode(self, features)
        passes.append(decoded.dtype)
        return decoded

    made = Prediction.__init__

    def seen(self, *args):
        made(self, *args)
        found.append((passes[-1], self.logits.dtype))

    monkeypatch.setattr(ralseg.SmpSegmenter, "decode", noted)
    monkeypatch.setattr(Prediction, "__init__", seen)
    return found


def test_passes_of_a_game_have_the_precision_of_the_trainer_and_what_is_measured_is_in_full(tmp_path, looks):
    trainer = play(tmp_path, game(episodes=1, validation_plays=0), precision="bf16-mixed")
    assert set(looks) == {(torch.bfloat16, torch.float32)}
    assert all(score > 0 for score in trainer.fit_loop.session.history[0]["miou"])
    weights = read_checkpoint(tmp_path / "checkpoints/last.ckpt")["state_dict"].values()
    assert torch.bfloat16 not in {weight.dtype for weight in weights}


@pytest.mark.parametrize("policy", ["bald", "margin", "ralseg"])
def test_acquisitions_in_lower_precision_choose_much_the_same(tmp_path, looks, policy):
    chosen = []
    for precision in ("32-true", "bf16-mixed"):
        trainer, _ = acquire(tmp_path / precision, policy, options=UNTRAINED | {"precision": precision})
        chosen.append(set(trainer.fit_loop.session.ledger.labelled[:4].tolist()))
    assert {logits for _, logits in looks} == {torch.float32}
    assert torch.bfloat16 in {decoded for decoded, _ in looks}
    assert len(chosen[0] & chosen[1]) >= 3


@pytest.mark.parametrize("policy", ["bald", "entropy", "ralseg"])
def test_acquisitions_work_with_weights_in_lower_precision(tmp_path, policy):
    _, result = acquire(tmp_path, policy, options={"precision": "bf16-true"})
    assert result["budgets"]["10"]["test_set/miou"] > 0


def test_a_network_of_ones_own_draws_its_dropout_samples_in_the_precision_of_the_trainer(tmp_path):
    found = []

    class Net(TinyNet):
        def forward(self, image):
            found.append((self.training, torch.is_autocast_enabled("cpu")))
            return super().forward(image)

    acquire(tmp_path, "bald", model=Net(small_data().class_names), options=UNTRAINED | {"precision": "bf16-mixed"})
    assert len(found) > 20
    assert all(is_low for _, is_low in found)


def test_a_closed_form_game_in_lower_precision_resumes_bit_by_bit(tmp_path):
    """Its features are kept in memory: whoever asks for them first must not decide what they are."""
    rules = game(episodes=4, validation_plays=0, credit_pixels=200)

    def run(folder, **options):
        agent = CreditRegression(("entropy", "rarity"), epsilon=0.3, episodes_per_update=4)
        return play(folder, rules, agent, data=small_data(), model=closed_form(), precision="bf16-mixed", **options)

    whole = everything(run(tmp_path / "whole", callbacks=[Photograph(4)]))
    assert_same(whole, everything(run(tmp_path / "cut 4", ckpt="last")))


def test_features_of_another_precision_are_computed_again():
    made, index = segmenter().eval(), torch.arange(2)
    made.features = FeatureCache(2, 10**6)
    plain = made.logits(pixels(), index)
    made.features = FeatureCache(2, 10**6)
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(plain, made.logits(pixels(), index))
    assert torch.equal(plain, made.logits(pixels(), index))


def test_an_argument_of_that_name_of_another_network_is_kept():
    class Net(TinyNet):
        def __init__(self, class_names, channels_last, **options):
            super().__init__(class_names, **options)

    assert recipe_of(Net(("a", "b"), channels_last=3))["init_args"]["channels_last"] == 3
