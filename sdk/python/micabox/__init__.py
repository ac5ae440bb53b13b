"""Sandboxes from OCI images, each in a virtual machine of its own."""

from micabox.errors import *  # noqa
from micabox.sync.sandbox import Sandbox
