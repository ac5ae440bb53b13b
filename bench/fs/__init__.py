"""The filesystem workloads of a sandbox, beside ext4 and virtio-fs in the same machine."""
