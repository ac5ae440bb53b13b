"""Sandboxes in a machine of their own: what this machine's kernel alone does not do."""

import os
import unittest

from micabox import Change, Sandbox, images, snapshots

from .support import IMAGE, remove_image


class MachineTest(unittest.TestCase):
    def test_a_machine_s_disk_is_compared_committed_and_copied(self) -> None:
        with Sandbox.create(
            IMAGE, user="root", workdir="/", upper="disk:64m", memory="300m"
        ) as box:
            self.assertEqual(box.get_info().memory_mb, 300)
            box.files.write("/added", "1")
            box.commands.run("rm /etc/motd; echo x >>/etc/hostname; sync")
            release = box.commands.run("uname -r").stdout.strip()
            self.assertNotEqual(release, os.uname().release)
            self.assertIn(Change("/added", "added"), box.diff())
            self.assertIn(Change("/etc/motd", "deleted"), box.diff())
            digest = box.commit("committed", message="by a test")
            self.assertIn(digest, [image.digest for image in images.list()])
            copy = box.create_snapshot("copied")
            self.assertEqual([one.snapshot_id for one in snapshots.list()], ["copied"])
            self.assertEqual(copy, snapshots.list()[0])
            with Sandbox.create(snapshot="copied", net="none", envs={"FROM": "here"}) as twin:
                self.assertEqual(twin.commands.run("echo $FROM").stdout, "here\n")
                self.assertEqual(twin.files.read("/added"), "1")
            self.assertEqual(box.run_code("6 * 7").text, "42")
        snapshots.remove("copied")
        self.assertEqual(snapshots.list(), [])
        with Sandbox.create("committed", backend="host", user="root", workdir="/") as box:
            self.assertEqual(box.files.read("/added"), "1")
        remove_image("committed")
