// Package ecs stands in for Traefik's provider for Amazon's ECS, which brings Amazon's software.
package ecs

import (
	"errors"

	"github.com/traefik/traefik/v3/pkg/config/dynamic"
	"github.com/traefik/traefik/v3/pkg/safe"
)

// Provider cannot be switched on.
type Provider struct{}

func (*Provider) SetDefaults() {}

func (*Provider) Init() error {
	return errors.New("this Traefik was built without the provider ECS")
}

func (*Provider) Provide(chan<- dynamic.Message, *safe.Pool) error {
	return nil
}
