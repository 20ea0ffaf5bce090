"""Bugs about preemption to plant, in the manner of `planted_bugs`: each must be noticed."""

from tests.oracle.planted_bugs import Bug

PREEMPTION = "core/engine/preemption.py"
VICTIMS = "core/engine/victims.py"
REMOVABLE = "core/state/removable.py"
BUDGETS = "core/model/budgets.py"
ORDER = "core/plugins/preemption.py"
READ = "kube/read.py"

BUGS = (
    Bug(
        "equals-go-in-columns",
        VICTIMS,
        "table.priority[rows] < ask.pod.priority",
        "table.priority[rows] <= ask.pod.priority",
        "only pods of lower priority go",
    ),
    Bug(
        "equals-go-on-trials",
        PREEMPTION,
        "return victim.priority < pod.priority",
        "return victim.priority <= pod.priority",
        "only pods of lower priority go",
    ),
    Bug(
        "budgets-do-not-come-first",
        VICTIMS,
        "turn -= self.violating",
        "turn -= 0",
        "those whose removal breaks a budget are spared first",
    ),
    Bug(
        "budgets-do-not-come-first-on-trials",
        PREEMPTION,
        "key=lambda unit: broken.isdisjoint(r.pod.uid for r in unit)",
        "key=lambda unit: 0",
        "those whose removal breaks a budget are spared first",
    ),
    Bug(
        "the-last-allowed-breaks",
        VICTIMS,
        "left[budget.key] < 0",
        "left[budget.key] <= 0",
        "as many may go as are allowed",
    ),
    Bug(
        "allowed-anew-for-each",
        VICTIMS,
        "left.get(budget.key, budget.allowed) - 1",
        "budget.allowed - 1",
        "those before it have used the budget up",
    ),
    Bug(
        "the-spared-break-budgets",
        VICTIMS,
        "(victim & self._by_turn(self.violating, gathered=True))",
        "(self.there & self._by_turn(self.violating, gathered=True))",
        "only victims break budgets",
    ),
    Bug(
        "the-spared-break-budgets-on-trials",
        PREEMPTION,
        "sum(pod.uid in broken for pod in victims)",
        "len(broken)",
        "only victims break budgets",
    ),
    Bug(
        "disrupted-counted-again",
        BUDGETS,
        "and pod.name not in self.disrupted",
        "and True",
        "a removal that was counted already uses nothing up",
    ),
    Bug(
        "empty-selector-covers-all",
        BUDGETS,
        "and bool(selector.requirements)",
        "and True",
        "a budget with an empty selector covers nothing",
    ),
    Bug(
        "without-labels-covered",
        BUDGETS,
        "and bool(pod.labels)",
        "and True",
        "a pod without labels is covered by no budget",
    ),
    Bug(
        "priorities-from-zero",
        VICTIMS,
        "(priority * victim).sum(axis=1) + LOWEST * count",
        "(priority * victim).sum(axis=1)",
        "more victims of negative priority are worse, not better",
    ),
    Bug(
        "start-of-all-victims",
        VICTIMS,
        "first = victim & (priority == highest[:, np.newaxis])",
        "first = victim",
        "only victims of the highest priority count by their start",
    ),
    Bug(
        "start-of-all-victims-on-trials",
        VICTIMS,
        "for pod in victims if pod.priority == highest)",
        "for pod in victims)",
        "only victims of the highest priority count by their start",
    ),
    Bug(
        "exact-fit-refused",
        VICTIMS,
        "(with_it >= asked).all(axis=0)",
        "(with_it > asked).all(axis=0)",
        "what is left may be exactly what is asked",
    ),
    Bug(
        "the-oldest-go-first",
        REMOVABLE,
        "return (-pod.priority, start_of(pod), pod.uid)",
        "return (-pod.priority, -start_of(pod), pod.uid)",
        "the older of two equals is more important",
    ),
    Bug(
        "the-highest-go-first",
        REMOVABLE,
        "return (-pod.priority, start_of(pod), pod.uid)",
        "return (pod.priority, start_of(pod), pod.uid)",
        "the higher priority is more important",
    ),
    Bug(
        "not-started-is-oldest",
        REMOVABLE,
        "return pod.started_s or math.inf",
        "return pod.started_s",
        "a pod that has not started counts as the youngest",
    ),
    Bug(
        "the-oldest-node-wins",
        ORDER,
        "-plans.start)",
        "plans.start)",
        "the node whose victims started latest is best",
    ),
    Bug(
        "sum-before-highest",
        ORDER,
        "rest = (plans.highest, plans.total,",
        "rest = (plans.total, plans.highest,",
        "the highest priority decides before the sum",
    ),
    Bug(
        "budgets-do-not-decide",
        ORDER,
        "return (plans.violations, *rest, plans.lost_s)",
        "return (*rest, plans.violations, plans.lost_s)",
        "broken budgets decide first",
    ),
    Bug(
        "lost-work-decides-early",
        ORDER,
        "return (plans.violations, *rest, plans.lost_s)",
        "return (plans.violations, plans.lost_s, *rest)",
        "lost work decides only what kube-scheduler leaves open",
    ),
    Bug(
        "ports-in-columns",
        PREEMPTION,
        "if self._verdicts.is_wide(ask) or others or ask.row.ports or ask.row.partitions:",
        "if self._verdicts.is_wide(ask) or others or ask.row.partitions:",
        "columns know nothing of ports",
    ),
    Bug(
        "terms-in-columns",
        PREEMPTION,
        "if self._verdicts.is_wide(ask) or others or ask.row.ports or ask.row.partitions:",
        "if others or ask.row.ports or ask.row.partitions:",
        "columns know nothing of affinity and spread",
    ),
    Bug(
        "the-spared-do-not-stay",
        VICTIMS,
        "np.copyto(free, with_it, where=fits)",
        "np.copyto(free, with_it, where=~fits & fits)",
        "who is spared is in the way of the next",
    ),
    Bug(
        "nobody-to-remove-is-not-helpful",
        PREEMPTION,
        "self.add(NO_VICTIMS, found.without)",
        "self.add(NOT_HELPFUL, found.without)",
        "kube-scheduler has words of its own for that",
    ),
    Bug(
        "never-forgotten",
        READ,
        'preempts = spec.preemption_policy != "Never"',
        "preempts = True",
        "a pod may ask that nobody goes for it",
    ),
)
