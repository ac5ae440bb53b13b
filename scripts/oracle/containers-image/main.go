// Decides about images as skopeo and podman do, and signs them, with the library that these use: an oracle for
// policies and signatures (scripts/nightly policy).
//
//	containers-image verify POLICY REGISTRIES.D IMAGE
//	containers-image sign LAYOUT IMAGE KEY PASSWORD REGISTRIES.D
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containers/image/v5/copy"
	"github.com/containers/image/v5/directory"
	"github.com/containers/image/v5/docker"
	"github.com/containers/image/v5/oci/layout"
	"github.com/containers/image/v5/signature"
	"github.com/containers/image/v5/types"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 4 && arguments[0] == "verify":
		return verify(arguments[1], arguments[2], arguments[3])
	case len(arguments) == 6 && arguments[0] == "sign":
		return sign(arguments[1], arguments[2], arguments[3], arguments[4], arguments[5])
	}
	return fmt.Errorf("usage: containers-image verify POLICY REGISTRIES.D IMAGE")
}

func system(registries string) *types.SystemContext {
	return &types.SystemContext{
		RegistriesDirPath:           registries,
		DockerInsecureSkipTLSVerify: types.OptionalBoolTrue,
	}
}

// verify copies an image away, if the policy lets it.
func verify(policyPath, registries, image string) error {
	policy, err := signature.NewPolicyFromFile(policyPath)
	if err != nil {
		return err
	}
	decides, err := signature.NewPolicyContext(policy)
	if err != nil {
		return err
	}
	from, err := docker.ParseReference("//" + image)
	if err != nil {
		return err
	}
	away, err := os.MkdirTemp("", "verified")
	if err != nil {
		return err
	}
	defer os.RemoveAll(away)
	to, err := directory.NewReference(away)
	if err != nil {
		return err
	}
	_, err = copy.Image(context.Background(), decides, to, from, &copy.Options{
		SourceCtx:        system(registries),
		RemoveSignatures: true,
	})
	return err
}

// sign pushes the image in a layout, with a signature.
func sign(path, image, key, passwordPath, registries string) error {
	policy := &signature.Policy{Default: signature.PolicyRequirements{signature.NewPRInsecureAcceptAnything()}}
	decides, err := signature.NewPolicyContext(policy)
	if err != nil {
		return err
	}
	from, err := layout.ParseReference(path)
	if err != nil {
		return err
	}
	to, err := docker.ParseReference("//" + image)
	if err != nil {
		return err
	}
	password, err := os.ReadFile(passwordPath)
	if err != nil {
		return err
	}
	_, err = copy.Image(context.Background(), decides, to, from, &copy.Options{
		DestinationCtx:                   system(registries),
		PreserveDigests:                  true,
		SignBySigstorePrivateKeyFile:     key,
		SignSigstorePrivateKeyPassphrase: password,
	})
	return err
}
