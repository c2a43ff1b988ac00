"""Run the simulation of fleets; see `run`."""

from tests.simulation.fleet.run import main

main()
