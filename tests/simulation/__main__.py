"""Run the simulation: ``python -m tests.simulation --seed N``."""

from tests.simulation.run import main

main()
