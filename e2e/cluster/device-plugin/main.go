// Command device-plugin hands out GPUs that do not exist, by the same calls as a vendor's plugin: it registers a resource
// with the kubelet, lists the devices, and tells for each container that gets some what to change in it. So pods are
// scheduled, wait and get devices as on a real GPU node: what the kubelet allocates is on record, and two pods never
// have the same device. A container gets its devices as device files, which swallow what is written to them, and their
// names in an environment variable.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	registrationTime = 10 * time.Second
	lookEvery        = time.Second
	// The file on the node that stands for each device. Every container may open it.
	deviceFile = "/dev/null"
)

var (
	resource = flag.String("resource", "nvidia.com/gpu", "the name that pods ask for")
	count    = flag.Int("count", 1, "how many devices there are")
	prefix   = flag.String("file", "/dev/nvidia", "a device's file in a container, less its number")
	variable = flag.String("variable", "NVIDIA_VISIBLE_DEVICES", "the environment variable with the devices' names")
)

// The devices are numbered from 0. The kubelet knows them by name.
func name(number int) string { return fmt.Sprintf("GPU-%d", number) }

type plugin struct {
	api.UnimplementedDevicePluginServer
	done <-chan struct{}
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// All devices are there and healthy from the beginning to the end.
func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	devices := make([]*api.Device, *count)
	for number := range devices {
		devices[number] = &api.Device{ID: name(number), Health: api.Healthy}
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-stream.Context().Done():
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	numbers := map[string]int{}
	for number := range *count {
		numbers[name(number)] = number
	}
	answer := &api.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		given := &api.ContainerAllocateResponse{Envs: map[string]string{*variable: strings.Join(container.DevicesIds, ",")}}
		for _, id := range container.DevicesIds {
			number, known := numbers[id]
			if !known {
				return nil, fmt.Errorf("there is no device %q", id)
			}
			file := fmt.Sprintf("%s%d", *prefix, number)
			spec := &api.DeviceSpec{HostPath: deviceFile, ContainerPath: file, Permissions: "rw"}
			given.Devices = append(given.Devices, spec)
		}
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}

// Serve listens, registers, and goes on until the context ends or the kubelet has started anew: that one removes the
// sockets of all plugins and forgets them.
func serve(ctx context.Context) error {
	file := strings.NewReplacer("/", "-", ".", "-").Replace(*resource) + ".sock"
	socket := filepath.Join(api.DevicePluginPath, file)
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	server := grpc.NewServer()
	defer server.Stop()
	defer end()
	api.RegisterDevicePluginServer(server, &plugin{done: ctx.Done()})
	go server.Serve(listener)
	if err := register(ctx, file); err != nil {
		return err
	}
	log.Printf("%d %s are registered", *count, *resource)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookEvery):
			if _, err := os.Stat(socket); err != nil {
				log.Printf("the kubelet has started anew: %v", err)
				return nil
			}
		}
	}
}

func register(ctx context.Context, file string) error {
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, end := context.WithTimeout(ctx, registrationTime)
	defer end()
	wanted := &api.RegisterRequest{Version: api.Version, Endpoint: file, ResourceName: *resource}
	_, err = api.NewRegistrationClient(connection).Register(ctx, wanted)
	return err
}

func main() {
	flag.Parse()
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer end()
	for ctx.Err() == nil {
		if err := serve(ctx); err != nil {
			log.Print(err)
			time.Sleep(lookEvery)
		}
	}
}
