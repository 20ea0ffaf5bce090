"""`bayplan extender`: the devices' part of the decisions of an unchanged kube-scheduler."""
