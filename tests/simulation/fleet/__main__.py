"""See `run`."""

from tests.simulation.fleet.run import main

main()
