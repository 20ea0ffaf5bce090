"""The extender's protocol: bytes in, values out; bad bytes too."""

import json

import pytest

from bayplan.extender import wire
from bayplan.kube.read import Reader

POD = b'{"metadata": {"name": "p", "namespace": "d", "uid": "u"}}'
NODE = b'{ "metadata":{"name":"n%d"},  "status":{"images":[{"sizeBytes":1e3}],"x":"\\u00e9"} }'


def body(**fields: bytes) -> bytes:
    return b"{" + b",".join(b'"%s":%s' % (key.encode(), fields[key]) for key in fields) + b"}"


def test_names_come_in_their_order_and_the_pod_is_readable() -> None:
    args = wire.filter_args(body(Pod=POD, Nodes=b"null", NodeNames=b'["b","a"]'))
    assert args.names == ["b", "a"]
    assert args.nodes is None
    assert Reader().pod(args.pod).name == "p"


def test_a_result_by_names_has_every_key() -> None:
    args = wire.filter_args(body(Pod=POD, NodeNames=b'["a","b","c"]'))
    assert json.loads(wire.encode(args.passed(["b"], {"a": "full"}, {"c": "never"}))) == {
        "Nodes": None,
        "NodeNames": ["b"],
        "FailedNodes": {"a": "full"},
        "FailedAndUnresolvableNodes": {"c": "never"},
        "Error": "",
    }


def test_whole_nodes_come_back_byte_for_byte() -> None:
    first, second = NODE % 1, NODE % 2
    items = b'{"metadata":{"resourceVersion":"7"},"items":[' + first + b"," + second + b"]}"
    args = wire.filter_args(body(Pod=POD, Nodes=items, NodeNames=b"null"))
    assert args.names == ["n1", "n2"]
    encoded = wire.encode(args.passed(["n2"], {"n1": "full"}))
    assert second in encoded
    assert first not in encoded
    result = json.loads(encoded)
    assert result["NodeNames"] is None
    assert result["Nodes"] == {"metadata": {}, "items": [json.loads(second)]}


def test_names_go_before_whole_nodes() -> None:
    items = b'{"items":[' + NODE % 1 + b"]}"
    assert wire.filter_args(body(Pod=POD, Nodes=items, NodeNames=b'["a"]')).names == ["a"]


@pytest.mark.parametrize(
    ("nodes", "names", "whole"),
    [
        (b"null", b"null", False),
        (b"null", b"[]", False),
        (b"{}", b"null", True),
        (b'{"items":null}', b"null", True),
    ],
)
def test_no_nodes_at_all_is_an_empty_list_and_never_null(
    nodes: bytes, names: bytes, whole: bool
) -> None:
    args = wire.filter_args(body(Pod=POD, Nodes=nodes, NodeNames=names))
    assert args.names == []
    result = json.loads(wire.encode(args.passed([])))
    assert (result["Nodes"] == {"metadata": {}, "items": []}) is whole
    assert (result["NodeNames"] == []) is not whole


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "the request: Input data was truncated"),
        (b"null", "the request: Expected `object`, got `null`"),
        (b"[1]", "the request: Expected `object`, got `array`"),
        (b"\x16\x03\x01", "the request: JSON is malformed: invalid character (byte 0)"),
        (b"{}", "Pod: missing or null"),
        (body(Pod=b" null "), "Pod: missing or null"),
        (body(pod=POD, nodeNames=b"[]"), "Pod: missing or null"),
        (body(Pod=POD, NodeNames=b"3"), "NodeNames: Expected `array | null`, got `int`"),
        (body(Pod=POD, NodeNames=b"[null]"), "NodeNames[0]: Expected `str`, got `null`"),
        (body(Pod=POD, Nodes=b"[]"), "Nodes: Expected `object | null`, got `array`"),
        (body(Pod=POD, Nodes=b'{"items":[{}]}'), "Nodes.items[0].metadata.name: missing"),
        (
            body(Pod=POD, Nodes=b'{"items":[' + NODE % 1 + b",null]}"),
            "Nodes.items[1]: Expected `object`, got `null`",
        ),
        (
            body(Pod=POD, Nodes=b'{"items":[{"metadata":{"name":4}}]}'),
            "Nodes.items[0].metadata.name: Expected `str | null`, got `int`",
        ),
        (body(Pod=POD) + b"}", "the request: JSON is malformed: trailing characters"),
        (body(Pod=POD, NodeNames=b'["\xff\xfe"]'), "the request: 'utf-8' codec can't decode"),
        (body(Pod=b"[" * 200_000), "the request: maximum recursion depth exceeded"),
        (body(Pod=POD, Other=b'{"a":' * 200_000), "the request: maximum recursion depth exceeded"),
    ],
)
def test_a_bad_request_is_one_sentence_that_names_the_field(sent: bytes, words: str) -> None:
    with pytest.raises(wire.BadRequest) as raised:
        wire.filter_args(sent)
    assert str(raised.value).startswith(words)


def test_prioritize_reads_names_when_it_is_asked_for_them() -> None:
    names = b'[ "b","a"]'
    args = wire.score_args(body(Pod=POD, Nodes=b"null", NodeNames=names))
    assert (bytes(args.pod), bytes(args.listed), args.names) == (POD, names, ["b", "a"])
    items = b'{"items":[' + NODE % 1 + b"]}"
    assert wire.score_args(body(Pod=POD, Nodes=items)).names == ["n1"]
    with pytest.raises(wire.BadRequest, match=r"NodeNames\[0\]: Expected `str`, got `null`"):
        wire.score_args(body(Pod=POD, NodeNames=b"[null]")).names  # noqa: B018
    with pytest.raises(wire.BadRequest, match="Pod: missing or null"):
        wire.score_args(body(NodeNames=names))


def test_numbers_without_measure_in_fields_that_nobody_reads_do_no_harm() -> None:
    huge = b"1" * 100_000
    args = wire.filter_args(body(Pod=POD, Extra=huge, More=b"-1e999999", NodeNames=b'["a"]'))
    assert args.names == ["a"]


def test_victims_by_uid() -> None:
    meta = b'{"n1":{"Pods":[{"UID":"a"},null,{"UID":"b"}],"NumPDBViolations":2},"n2":null}'
    args = wire.preempt_args(body(Pod=POD, NodeNameToVictims=b"null", NodeNameToMetaVictims=meta))
    assert args.victims["n1"].uids == ["a", "b"]
    assert args.victims["n1"].pdb_violations == 2
    assert args.victims["n2"].uids == []
    kept = wire.PreemptResult({"n1": wire.MetaVictims.of(["b"], 1)})
    assert json.loads(wire.encode(kept)) == {
        "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "b"}], "NumPDBViolations": 1}}
    }


def test_victims_as_whole_pods() -> None:
    whole = b'{"n1":{"Pods":[%s,null],"NumPDBViolations":null},"n2":null}' % POD
    args = wire.preempt_args(body(Pod=POD, NodeNameToVictims=whole, NodeNameToMetaVictims=b"null"))
    assert {node: victims.uids for node, victims in args.victims.items()} == {"n1": ["u"], "n2": []}


@pytest.mark.parametrize(
    ("victims", "words"),
    [
        ({"Pod": b"null"}, "Pod: missing or null"),
        ({"NodeNameToMetaVictims": b'{"n":{"Pods":[{}]}}'}, "NodeNameToMetaVictims[n]: a pod with"),
        (
            {"NodeNameToVictims": b'{"n":{"Pods":[{"metadata":{}}]}}'},
            "NodeNameToVictims[n].Pods[0].metadata.uid: missing",
        ),
        (
            {"NodeNameToMetaVictims": b'{"n":{"NumPDBViolations":1%s}}' % (b"0" * 400)},
            "NodeNameToMetaVictims[...].NumPDBViolations: Expected `int`",
        ),
        (
            {"NodeNameToMetaVictims": b'{"n":{"NumPDBViolations":1.5}}'},
            "NodeNameToMetaVictims[...].",
        ),
    ],
)
def test_victims_that_make_no_sense(victims: dict[str, bytes], words: str) -> None:
    with pytest.raises(wire.BadRequest) as raised:
        wire.preempt_args(body(**{"Pod": POD} | victims))
    assert str(raised.value).startswith(words)


def test_nothing_to_preempt() -> None:
    assert wire.preempt_args(body(Pod=POD)).victims == {}


def test_bind() -> None:
    sent = body(PodName=b'"p"', PodNamespace=b'"d"', PodUID=b'"u"', Node=b'"n1"', Extra=b"{}")
    assert wire.bind_args(sent) == wire.BindArgs("p", "d", "u", "n1")
    assert wire.encode(wire.BindResult()) == b'{"Error":""}'


@pytest.mark.parametrize("left_out", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("how", [None, b"null", b'""'])
def test_a_bind_needs_all_four(left_out: str, how: bytes | None) -> None:
    fields = dict.fromkeys(("PodName", "PodNamespace", "PodUID", "Node"), b'"x"')
    del fields[left_out]
    if how is not None:
        fields[left_out] = how
    with pytest.raises(wire.BadRequest, match=f"^{left_out}: missing$"):
        wire.bind_args(body(**fields))


def test_scores() -> None:
    assert wire.encode([wire.HostPriority("a", 10)]) == b'[{"Host":"a","Score":10}]'
