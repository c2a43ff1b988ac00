"""Pages of the hub's console: scripts that browsers run. `bridge/console` has what they share with a gateway's."""
