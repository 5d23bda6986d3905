"""Run trained policies without a runner, evaluate them, and match them against each other. See docs/deploy.md."""

from typing import TYPE_CHECKING

from fastmarl.core.objects.public import imported_when_used

if TYPE_CHECKING:
    from fastmarl.play.arena.evaluation import Evaluation as Evaluation
    from fastmarl.play.arena.evaluation import Returns as Returns
    from fastmarl.play.arena.evaluation import evaluate as evaluate
    from fastmarl.play.arena.matches import tournament as tournament
    from fastmarl.play.arena.ratings import bradley_terry as bradley_terry
    from fastmarl.play.arena.standings import Tournament as Tournament
    from fastmarl.play.policy import Policy as Policy

__all__, __getattr__ = imported_when_used(__name__)
