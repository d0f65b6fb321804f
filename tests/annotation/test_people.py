"""People in a run: what they are shown, what they skip, correct and leave out, and that a run ends the same."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ralseg.acquisition import Needs, Policy
from ralseg.annotation import Cost, CropOracle, Journal, Request
from ralseg.annotation.people import class_colours
from ralseg.cli import main
from ralseg.data import Folder, SegmentationData, SplitSizes
from ralseg.engine.acquire_session import SET, next_best
from ralseg.engine.acquire_trainer import find_oracle, result_table
from ralseg.errors import ConfigError, DataError, RalsegError
from ralseg.labels import GridLayout, LabelsNeeded, Ranking
from ralseg.labels.oracle import LabellingJob
from support.configs import ACQUIRE
from support.data import make_folder, small_data
from support.games import UNTRAINED, Killed, acquire, assert_same, final, segmenter, selected
from support.layouts import Hook
from support.people import Team

SHORT = {"final": final(max_steps=2)}


class Highest(Policy):
    """A region's score is its number."""

    needs = Needs(looks=False)

    def scores(self, observation, generator):
        return observation.pools.float()


def journal_of(folder: Path) -> list[dict]:
    return Journal(folder / "to_label" / "journal.jsonl").entries()


def labelled(trainer) -> list[int]:
    return trainer.fit_loop.session.ledger.labelled.tolist()


def job_in(folder: Path | None, data: SegmentationData | None = None, **changes) -> LabellingJob:
    data = data or small_data()
    data.setup()
    return replace(data.labelling_job(SET, folder), **changes)


# -- what is asked ---------------------------------------------------------------------------------


def test_a_request_shows_the_region_the_prediction_and_what_the_policy_thinks(tmp_path):
    oracle = Team(reserves=3)
    trainer, _ = acquire(tmp_path, Highest(), oracle=oracle, options=UNTRAINED)
    request, session = oracle.requests[-1], trainer.fit_loop.session  # of the last step: the model is the one of now
    assert [wanted.rank for wanted in request.regions] == [1, 2, 3, 4, 5]
    assert [wanted.reserve for wanted in request.regions] == [False] * 2 + [True] * 3
    assert all(wanted.score == wanted.region for wanted in request.regions)
    assert request.regions[0].region > request.regions[1].region
    assert [entry.name for entry in request.classes] == list(session.data.class_names)
    assert [entry.rgb for entry in request.classes] == list(session.data.dataset.colours)
    for wanted in request.regions:
        image = int(session.regions.image_of(torch.tensor(wanted.region)))
        box = np.s_[wanted.y : wanted.y + wanted.height, wanted.x : wanted.x + wanted.width]
        pixels = session.data.dataset.read_image(session.data.splits[SET][image])
        assert (wanted.image_height, wanted.image_width) == pixels.shape[:2]
        assert (np.asarray(Image.open(tmp_path / "to_label" / wanted.crop)) == pixels[box]).all()
        shown = Image.open(tmp_path / "to_label" / wanted.prediction)
        assert shown.size == (wanted.width, wanted.height)
        assert np.asarray(shown).max() < len(request.classes)


def test_a_prediction_is_in_the_files_own_size_and_what_the_model_says(tmp_path):
    root = make_folder(tmp_path / "data", train=6, size=(66, 97))
    data = SegmentationData(
        Folder(str(root)), SplitSizes(state=1, train=2), size=(32, 48), layout=GridLayout(2, 3), batch_size=4
    )
    seen = {}

    class Looking(Team):
        def wait(self, request):
            for wanted in request.regions:
                image = self.job.image_names.index(wanted.image)
                seen[wanted.region] = (self.job.predict(image), request)
            super().wait(request)

    acquire(tmp_path / "run", data=data, model=segmenter(names=data.class_names), oracle=Looking(), budgets=[4])
    for region, (prediction, request) in seen.items():
        wanted = next(entry for entry in request.regions if entry.region == region)
        assert prediction.shape == (66, 97)
        shown = np.asarray(Image.open(tmp_path / "run" / "to_label" / wanted.prediction))
        box = np.s_[wanted.y : wanted.y + wanted.height, wanted.x : wanted.x + wanted.width]
        assert (shown == prediction[box]).all()


def test_where_nobody_can_predict_nothing_is_shown(tmp_path):
    oracle = CropOracle()
    oracle.open(job_in(tmp_path))
    with pytest.raises(LabelsNeeded):
        oracle.ask(torch.tensor([3, 4]), 0)
    request = Request.read(tmp_path / "to_label")
    assert [wanted.prediction for wanted in request.regions] == [None, None]
    assert [wanted.score for wanted in request.regions] == [None, None]
    assert oracle.asked(0) == [3, 4]
    assert oracle.asked(1) == []


def test_pictures_of_earlier_requests_do_not_stay(tmp_path):
    ranking = Ranking({}, [20, 21])
    oracle = Team(reserves=2)
    blank = np.zeros((64, 96), np.uint8)
    oracle.open(job_in(tmp_path, predict=lambda image: blank, ranking=lambda: ranking))
    (tmp_path / "to_label" / "crops").mkdir(parents=True)
    (tmp_path / "to_label" / "crops" / "mine.png").write_bytes(b"not ours to delete")
    oracle.ask(torch.tensor([3, 4]), 0)
    assert len(list((tmp_path / "to_label" / "crops").iterdir())) == 5
    ranking = Ranking()
    oracle.ask(torch.tensor([5]), 1)

    def regions(folder: str) -> set[str]:
        return {path.name[:7] for path in (tmp_path / "to_label" / folder).glob("*.png")}

    assert regions("crops") == {"0000005", "mine.pn"}
    assert regions("predictions") == {"0000003", "0000004", "0000005"}  # of answers, by which corrections are counted
    assert regions("masks") == {"0000003", "0000004", "0000005"}


def test_a_newer_model_predicts_anew(tmp_path):
    says = [1]
    oracle = Team(reserves=1)
    ranking = Ranking({}, [20])
    oracle.open(job_in(tmp_path, predict=lambda image: np.full((64, 96), says[0], np.uint8), ranking=lambda: ranking))
    oracle.ask(torch.tensor([3]), 0)
    says, ranking = [2], Ranking()
    oracle.ask(torch.tensor([20]), 1)
    (wanted,) = oracle.answers.request.regions
    assert (np.asarray(Image.open(tmp_path / "to_label" / wanted.prediction)) == 2).all()


def test_regions_of_any_shape_are_shown_and_counted_as_they_are(tmp_path):
    data = small_data(layout=Hook())
    oracle = Team()
    oracle.open(job_in(tmp_path, data))
    answer = oracle.ask(torch.tensor([0, 1]), 0)
    for wanted, label in zip(oracle.answers.request.regions, answer.labels, strict=True):
        inside = data.regions(SET).inside(wanted.region)
        if wanted.region == 0:
            shape = np.asarray(Image.open(tmp_path / "to_label" / wanted.inside))
            assert ((shape == 255) == inside.numpy()).all()
        else:  # fills its box
            assert wanted.inside is None
        assert (label[: inside.shape[0], : inside.shape[1]][~inside] == 255).all()
    assert oracle.cost([0, 1])["pixels"] == 64 * 96


def test_classes_without_a_colour_of_their_own_get_one(tmp_path):
    job = job_in(None, class_names=("a", "b", "c"), colours=((1, 2, 3), (1, 2, 3)))
    colours = [entry.colour for entry in class_colours(job)]
    assert colours[0] == "#010203"
    assert len(set(colours)) == 3


# -- skipping --------------------------------------------------------------------------------------


def test_the_next_best_are_ranked_pool_by_pool():
    pools = torch.arange(12).reshape(3, 4)
    values = torch.tensor([[4.0, 3, 2, 1], [1, 9, 5, 7], [6, 0, 8, 3]])
    assert next_best(pools, values, torch.tensor([[0], [1], [2]])) == [7, 8, 1, 6, 11, 2, 3, 4, 9]
    everything = torch.arange(6)[None]
    assert next_best(everything, torch.tensor([[1.0, 5, 3, 2, 4, 0]]), torch.tensor([[1, 4]])) == [2, 3, 0, 5]
    assert next_best(pools[:, :1], values[:, :1], torch.zeros(3, 1, dtype=torch.int64)) == []


@pytest.mark.parametrize("candidates", ["pools", "global"])
def test_skipped_regions_are_replaced_and_the_budget_is_met(tmp_path, candidates):
    oracle = Team(skips=3, reserves=6)
    rules = {"budgets": [4, 10], "candidates": candidates}
    trainer, result = acquire(tmp_path, Highest(), oracle=oracle, options=UNTRAINED, **rules)
    assert set(result["budgets"]) == {"4", "10"}
    found = labelled(trainer)
    assert len(set(found)) == 10
    assert not [region for region in found if region % 3 == 0]
    skipped = [entry["region"] for entry in journal_of(tmp_path) if entry["event"] == "skipped"]
    assert skipped
    assert len(set(skipped)) == len(skipped)  # what was put off is not chosen again while there is something else
    rows = list(csv.DictReader((tmp_path / "selection.csv").open()))
    assert [float(row["score"]) for row in rows] == found
    if candidates == "global":
        assert sorted(found, reverse=True) == [region for region in range(35, -1, -1) if region % 3][:10]


def test_what_everybody_skips_is_labelled_in_the_end(tmp_path):
    trainer, _ = acquire(tmp_path, Highest(), oracle=Team(skips=1), budgets=[4], options=UNTRAINED)
    assert len(labelled(trainer)) == 4


def test_an_oracle_may_not_answer_what_was_no_reserve(tmp_path):
    class Eager(Team):
        def reserved(self, step):
            return []

    with pytest.raises(RalsegError, match="Eager labelled regions that nobody asked for"):
        acquire(tmp_path, Highest(), oracle=Eager(skips=3, reserves=6), options=UNTRAINED)


# -- the end is the same ---------------------------------------------------------------------------


def test_people_who_give_the_true_masks_change_nothing(tmp_path):
    class Knowing(Team):
        def stripes(self, wanted, shift=0):
            image = data.dataset.names.index(wanted.image)
            mask = data.dataset.read_mask(image)
            return mask[wanted.y : wanted.y + wanted.height, wanted.x : wanted.x + wanted.width].copy()

    data = small_data()
    _, told = acquire(tmp_path / "people", "bald", oracle=Knowing(), data=data)
    _, revealed = acquire(tmp_path / "masks", "bald")
    assert selected(tmp_path / "people") == selected(tmp_path / "masks")
    for one, two in zip(told["budgets"].values(), revealed["budgets"].values(), strict=True):
        assert {**one, "cost": None} == {**two, "cost": None}
    cost, free = told["cost"], revealed["cost"]
    assert free == {"regions": 10, "pixels": 10 * 32 * 32, "clicks": None, "minutes": None}
    assert (cost["regions"], cost["pixels"]) == (free["regions"], free["pixels"])
    assert (cost["clicks"], cost["minutes"]) == (20, 0.5)


OPTIONS = {"skips": 5, "stops": True, "corrects": True, "min_answers": 2, "reserves": 3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run with people who skip, stop early and correct."""
    folder = tmp_path_factory.mktemp("whole")
    trainer, result = acquire(folder, "class_balanced_entropy", oracle=Team(**OPTIONS), budgets=[4, 12])
    return trainer, result, selected(folder)


def comparable(trainer) -> dict:
    return {key: value for key, value in trainer.fit_loop.session.state_dict().items() if key != "seconds"}


def test_partial_answers_still_meet_the_budget_exactly(whole):
    trainer, result, chosen = whole
    assert set(result["budgets"]) == {"4", "12"}
    assert len(set(chosen)) == len(chosen) == 12
    assert [counted for counted in np.bincount([int(step) for step, *_ in chosen])] == [4, 2, 4, 2]
    assert result["corrected"]
    assert trainer.fit_loop.session.corrected == result["corrected"]


@pytest.mark.slow
@pytest.mark.parametrize("dies_at", [(0, 0), (0, 3), (1, -1), (2, 0), (2, 2), (3, -1)])
def test_a_run_with_people_that_was_cut_off_ends_the_same(tmp_path, whole, dies_at):
    with pytest.raises(Killed):
        acquire(tmp_path, "class_balanced_entropy", oracle=Team(**OPTIONS, dies_at=dies_at), budgets=[4, 12])
    if dies_at[1] == -1:  # other answers come while nobody is there to take them
        late = Team(**OPTIONS)
        late.open(job_in(tmp_path))
        for region in late.answers.taken()[dies_at[0]]:
            wanted = late.answers.wanted(region)
            late.answers.save(region, np.zeros(wanted.shape, np.uint8), source="page")
            late.answers.save(region, late.stripes(wanted), source="page")
    trainer, result = acquire(tmp_path, "class_balanced_entropy", oracle=Team(**OPTIONS), budgets=[4, 12], ckpt="last")
    before, first, chosen = whole
    assert selected(tmp_path) == chosen
    states = [comparable(entry) for entry in (trainer, before)]
    assert_same(*states)
    assert_same(dict(trainer.lightning_module.state_dict()), dict(before.lightning_module.state_dict()))
    for one, two in zip(result["budgets"].values(), first["budgets"].values(), strict=True):
        assert_same({**one, "cost": None}, {**two, "cost": None})


# -- corrections -----------------------------------------------------------------------------------


def test_a_correction_is_used_from_the_next_step_on_and_told(tmp_path, caplog):
    noted = []

    class Watching(Team):
        def corrections(self, step):
            answer = super().corrections(step)
            noted.append((step, answer.regions.tolist()))
            return answer

    oracle = Watching(corrects=True)
    trainer, result = acquire(tmp_path, oracle=oracle, budgets=[16], options=SHORT)
    versions = [entry for entry in journal_of(tmp_path) if entry["event"] == "saved" and entry["version"] == 2]
    first, second = [entry["region"] for entry in versions]
    # corrected while the third and the fourth step waited; the fourth begins, and after it the final training
    assert [entry for entry in noted if entry[1]] == [(3, [first]), (None, [second])]
    assert result["corrected"] == sorted([first, second])
    assert "corrected since they were taken" in caplog.text
    session = trainer.fit_loop.session
    assert torch.equal(session.labels[first], oracle.label(torch.tensor([first]))[0])
    assert (session.labels[first][0] == (first + 1) % len(session.data.class_names)).all()


def test_scores_that_were_made_with_old_masks_say_so(tmp_path, capsys):
    oracle = Team()
    _, before = acquire(tmp_path, oracle=oracle, budgets=[4, 8], options=SHORT)
    assert "stale" not in json.dumps(before)
    region = min(oracle.answers.taken()[0])
    oracle.answers.save(region, oracle.stripes(oracle.answers.wanted(region), shift=2), who="Ada", source="page")
    _, result = acquire(tmp_path, oracle=Team(), budgets=[4, 8], options=SHORT, ckpt="last")
    assert result["corrected"] == [region]
    assert [scores["stale"] for scores in result["budgets"].values()] == [[region], [region]]
    said = capsys.readouterr().out
    assert "budget_000004: trained with older labels of 1 regions" in said.replace("\n", "")
    assert "made with labels that were corrected since" in said
    shutil.rmtree(tmp_path / "budget_000004")
    _, result = acquire(tmp_path, oracle=Team(), budgets=[4, 8], options=SHORT, ckpt="last")
    assert "stale" not in result["budgets"]["4"]
    assert result["budgets"]["8"]["stale"] == [region]
    assert json.loads((tmp_path / "result.json").read_text())["budgets"]["8"]["stale"] == [region]


def test_what_people_gave_to_a_region_that_was_not_taken_is_not_lost(tmp_path):
    """A reserve that was labelled beside what it stood in for: the next step that wants it has its mask."""
    oracle = Team(reserves=1)
    ranking = Ranking({}, [20])
    oracle.open(job_in(tmp_path, ranking=lambda: ranking))
    oracle._request([3], 0)
    for region in (20, 3):
        oracle.answers.save(region, oracle.stripes(oracle.answers.wanted(region)), source="page")
    assert oracle.ask(torch.tensor([3]), 0).regions.tolist() == [3]
    ranking = Ranking()
    assert oracle.ask(torch.tensor([20]), 1).regions.tolist() == [20]
    assert oracle.requests == []  # nobody was asked


# -- crops -----------------------------------------------------------------------------------------


def answer_crops(folder: Path, count: int | None = None, reserves: bool = False) -> list[int]:
    """Do what people do with files: a mask for some of the crops."""
    request = Request.read(folder / "to_label")
    chosen = [wanted for wanted in request.regions if reserves or not wanted.reserve][:count]
    for wanted in chosen:
        Image.new("L", (wanted.width, wanted.height), wanted.region % 3).save(folder / "to_label" / wanted.mask)
    return [wanted.region for wanted in chosen]


def test_enough_crops_do_where_the_oracle_says_so(tmp_path, capsys):
    def go(ckpt=None):
        oracle = CropOracle(min_answers=3)
        return acquire(tmp_path, oracle=oracle, budgets=[6], options=UNTRAINED, ckpt=ckpt)

    assert go()[1] is None
    assert "4 of 4 regions wait for labels" in capsys.readouterr().out
    first = answer_crops(tmp_path, 2)
    assert go("last")[1] is None
    assert "2 of 4 regions wait for labels" in (said := capsys.readouterr().out)
    assert "3 are enough to go on" in said
    first = answer_crops(tmp_path, 3)
    assert go("last")[1] is None  # three were enough, and three more are wanted
    second = answer_crops(tmp_path)
    assert len(second) == 3
    trainer, result = go("last")
    assert sorted(labelled(trainer)) == sorted(first + second)
    assert result["cost"]["regions"] == 6
    assert (result["cost"]["clicks"], result["cost"]["minutes"]) == (None, None)


def test_a_mask_of_a_reserve_takes_the_place_of_one_that_is_missing(tmp_path):
    oracle = CropOracle(reserves=2)
    ranking = Ranking({}, [20, 21])
    oracle.open(job_in(tmp_path, ranking=lambda: ranking))
    with pytest.raises(LabelsNeeded):
        oracle.ask(torch.tensor([3, 4]), 0)
    manifest = json.loads((tmp_path / "to_label" / "manifest.json").read_text())
    assert [entry["reserve"] for entry in manifest["regions"]] == [False, False, True, True]
    regions = {wanted.region: wanted for wanted in Request.read(tmp_path / "to_label").regions}
    for region in (4, 21):
        wanted = regions[region]
        Image.new("L", (wanted.width, wanted.height)).save(tmp_path / "to_label" / wanted.mask)
    assert oracle.ask(torch.tensor([3, 4]), 0).regions.tolist() == [4, 21]


def test_options_may_change_while_people_label(tmp_path):
    oracle = CropOracle()
    oracle.open(job_in(tmp_path))
    with pytest.raises(LabelsNeeded):
        oracle.ask(torch.tensor([3, 4]), 0)
    answer_crops(tmp_path, 1)
    with pytest.raises(LabelsNeeded, match="1 of 2 regions wait"):
        oracle.ask(torch.tensor([3, 4]), 0)
    hasty = CropOracle(min_answers=1)
    hasty.open(job_in(tmp_path))
    assert len(hasty.ask(torch.tensor([3, 4]), 0).regions) == 1


def test_masks_from_before_there_was_a_journal_are_found(tmp_path):
    oracle = CropOracle()
    oracle.open(job_in(tmp_path))
    with pytest.raises(LabelsNeeded):
        oracle.ask(torch.tensor([3, 4]), 0)
    answer_crops(tmp_path)
    for name in ("request.json", "journal.jsonl"):
        (tmp_path / "to_label" / name).unlink()
    oracle = CropOracle()
    oracle.open(job_in(tmp_path))
    labels = oracle.recall_at(torch.tensor([3, 4]), 1)
    assert (labels[0] == 0).all()
    assert (labels[1] == 1).all()


def test_all_bad_masks_of_a_request_are_told_at_once(tmp_path):
    oracle = CropOracle()
    oracle.open(job_in(tmp_path))
    with pytest.raises(LabelsNeeded):
        oracle.ask(torch.arange(4), 0)
    for region in answer_crops(tmp_path)[:2]:
        wanted = oracle.answers.wanted(region)
        Image.new("L", (3, 3)).save(tmp_path / "to_label" / wanted.mask)
    with pytest.raises(DataError, match="2 masks cannot be read"):
        oracle.ask(torch.arange(4), 0)


def test_the_colours_of_the_data_set_are_taken_for_what_they_mean(tmp_path):
    oracle = CropOracle()
    oracle.open(job_in(tmp_path, palette={(1, 2, 3): 1, (9, 9, 200): 255}))
    with pytest.raises(LabelsNeeded):
        oracle.ask(torch.tensor([3]), 0)
    (wanted,) = oracle.answers.request.regions
    Image.new("RGB", (wanted.width, wanted.height), (1, 2, 3)).save(tmp_path / "to_label" / wanted.mask)
    assert (oracle.ask(torch.tensor([3]), 0).labels == 1).all()


# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [({"min_answers": 0}, "min_answers=0"), ({"reserves": -1}, "reserves=-1"), ({"reask": 1.5}, "reask=1.5")],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        CropOracle(**options)


def test_a_configuration_gives_the_oracle_its_options(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own = "oracle: {class_path: ralseg.annotation.CropOracle, init_args: {min_answers: 2, reserves: 1}}\n"
    Path("tiny.yaml").write_text(ACQUIRE + own + "policy: uniform\n")
    assert main(["acquire", "--config", "tiny.yaml"]) == 0
    assert "2 are enough to go on" in capsys.readouterr().out.replace("\n", " ")
    assert Request.read(Path("run/to_label")).min_answers == 2
    assert Request.read(Path("run/to_label")).regions[-1].reserve


def test_names_of_oracles():
    assert isinstance(find_oracle("crops"), CropOracle)
    with pytest.raises(ConfigError, match="neither one of masks, crops, page, label_studio, none"):
        find_oracle("pages")


def test_the_table_shows_what_is_known_of_the_cost():
    scores = {"test_set/miou": 0.5, "reward_set/miou": 0.5, "iterations": 3}
    scores |= {"class_frequencies": {"selected_entropy": 1.0}}
    result = {"method": "entropy", "dataset": "Folder", "seed": 0, "regions": 36}
    free = {"regions": 4, "pixels": 9, "clicks": None, "minutes": None}
    table = result_table(result | {"budgets": {"4": scores | {"cost": free}}})
    assert [column.header for column in table.columns][-1] == "class entropy"
    cost = Cost(4, 9, 12, 1.234).as_json()
    table = result_table(result | {"budgets": {"4": scores | {"cost": cost}}})
    assert [column.header for column in table.columns][-2:] == ["clicks", "minutes"]
    assert [next(iter(column.cells)) for column in table.columns][-2:] == ["12", "1.234"]
