// The OCI registry of the distribution project, with files as storage, and passwords or tokens as authentication.
package main

import (
	"context"
	"log"
	"os"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/auth/token"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	settings, err := configuration.Parse(file)
	if err != nil {
		log.Fatal(err)
	}
	server, err := registry.NewRegistry(context.Background(), settings)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.ListenAndServe())
}
