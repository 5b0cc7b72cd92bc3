"""An API server whose store is replaced by an older or empty one while a node runs pods."""

from __future__ import annotations

from tests.cluster.control_plane import Object, shown
from tests.cluster.scenes import NODE, Scene, is_ready
from tests.node_rig import container
from tests.waiting import eventually


async def node_ready(scene: Scene) -> Object:
    return await shown(scene.plane.admin, NODE, is_ready)


async def test_pods_of_the_snapshot_go_on_and_later_ones_end(scene: Scene):
    kept = await scene.run("kept")
    changed = await scene.run("changed")
    await scene.all_ready(2)
    node = await node_ready(scene)
    snapshot = await scene.plane.snapshot()
    await scene.plane.admin.patch(NODE, {"metadata": {"labels": {"later": "1"}}}, Object)
    later = await scene.run("later")
    await scene.wait_for("later", is_ready)
    await scene.delete("changed")
    await scene.gone("changed")
    await scene.run("changed")
    await scene.wait_for("changed", is_ready)
    before = scene.starts()
    await scene.plane.set_back(snapshot)
    uid = changed["metadata"]["uid"]
    await eventually(lambda: scene.running() == {kept["metadata"]["uid"], uid})
    known = await scene.all_ready(2)
    assert known["changed"]["metadata"]["uid"] == uid
    assert known["kept"]["status"]["containerStatuses"][0]["restartCount"] == 0
    assert scene.starts() == before + 1, "that which the server has again"
    assert later["metadata"]["uid"] not in scene.running()
    told = await node_ready(scene)
    assert told["metadata"]["uid"] == node["metadata"]["uid"]
    await eventually(lambda: "later" not in scene.node.node_object().labels)  # type: ignore[union-attr]
    await scene.run("new")
    await scene.wait_for("new", is_ready)


async def test_a_node_of_an_emptied_server_registers_again_and_keeps_pods_of_the_same_name(scene: Scene):
    manifest = scene.write("static", {"containers": [container()]})
    first = await scene.run("web")
    await scene.wait_for("web", is_ready)
    mirror = await scene.wait_for("static-n1", is_ready)
    node = await node_ready(scene)
    await scene.plane.set_back(None)
    made = await scene.run("web")
    web = await scene.wait_for("web", is_ready)
    assert web["metadata"]["uid"] == made["metadata"]["uid"] != first["metadata"]["uid"]
    registered = await node_ready(scene)
    assert registered["metadata"]["uid"] != node["metadata"]["uid"]
    shown_again = await scene.wait_for("static-n1", is_ready)
    (owner,) = shown_again["metadata"]["ownerReferences"]
    assert owner["uid"] == registered["metadata"]["uid"]
    assert shown_again["status"]["containerStatuses"] == mirror["status"]["containerStatuses"]
    static = mirror["metadata"]["annotations"]["kubernetes.io/config.hash"]
    await eventually(lambda: scene.running() == {static, made["metadata"]["uid"]})
    assert scene.starts() == 3
    manifest.unlink()
    await eventually(lambda: static not in scene.running())
