"""How good policies are: alone, and against each other."""

from fastmarl.arena.evaluation import Evaluation as Evaluation
from fastmarl.arena.evaluation import evaluate as evaluate
from fastmarl.arena.matches import tournament as tournament
from fastmarl.arena.ratings import bradley_terry as bradley_terry
from fastmarl.arena.returns import Returns as Returns
from fastmarl.arena.standings import Tournament as Tournament
