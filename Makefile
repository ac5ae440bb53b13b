# Two commands matter: `make demo` and `make test`. Each step below knows by
# itself what is done already: packages are asked for, cargo tracks sources, the
# kernel and the sample image are cached by the hash of what makes them.

# The lock file is part of the source: nothing here may change it.
export CARGOFLAGS ?= --locked

.PHONY: help setup guest mica image wheel npm release demo check test test-kvm lint docs bench clean

help:
	@echo 'make demo    set up this machine, build everything, run a command in a VM'
	@echo 'make test    run all tests; as root also those that mount, and that boot VMs'
	@echo 'make test-kvm   only those of our own VMM, on this KVM or in an emulated machine with one'
	@echo
	@echo 'make check   formatting, clippy and unit tests of what is edited: the edit loop'
	@echo 'make lint    all that is found without running anything'
	@echo
	@echo 'make setup   install the Debian packages that are missing'
	@echo 'make guest   build the guest kernel (once) and agent into target/guest'
	@echo 'make mica    build target/release/mica'
	@echo 'make image   make the sample image (once)'
	@echo 'make wheel   pack the Python SDK with mica and the guest into dist'
	@echo 'make npm     pack the SDK for TypeScript, and mica and the guest for it, into dist'
	@echo 'make release all packages, with checksums and an SBOM, into dist'
	@echo 'make docs    the site: all pages and references, in target/site/html; dead links fail'
	@echo 'make bench   every benchmark; three and a half hours, as root'
	@echo 'make clean   remove target; the kernel and the image stay cached'

setup:
	@scripts/setup

guest: setup
	@scripts/guest

mica: setup
	@scripts/mica

image: setup
	@scripts/sample-image

wheel npm release:
	@scripts/setup --release
	@scripts/$@

demo:
	@scripts/demo

check:
	@scripts/test --quick

test:
	@scripts/test

test-kvm: setup
	@scripts/test-kvm

lint:
	@scripts/lint

docs: setup
	@scripts/docs

bench: mica guest image
	@scripts/setup --bench
	@scripts/bench

clean:
	cargo clean
