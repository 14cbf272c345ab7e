// Command cluster is a Kubernetes cluster in one executable, control plane and node: the first argument says which
// component to run, the rest are that component's own flags. Called by the name of a component, through a link, it is
// that component: so it stands in an image where others expect an executable for each. One program, because the
// components share nearly all of their code, and linking it once is what makes the build take minutes instead of a
// quarter of an hour.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// A component takes the arguments as the executable of its own would see them: its name, then its flags.
var components = map[string]func(arguments []string) int{
	"etcd":                    func(arguments []string) int { etcdmain.Main(arguments); return 0 },
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(controllers.NewControllerManagerCommand),
	"kube-proxy":              command(proxy.NewProxyCommand),
	"kube-scheduler":          command(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 command(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
}

// The command is made when it is run: making one registers flags and metrics for the whole process.
func command(create func() *cobra.Command) func([]string) int {
	return func(arguments []string) int {
		os.Args = arguments
		return cli.Run(create())
	}
}

func main() {
	if run, known := components[filepath.Base(os.Args[0])]; known {
		os.Exit(run(os.Args))
	}
	if len(os.Args) > 1 {
		if run, known := components[os.Args[1]]; known {
			os.Exit(run(os.Args[1:]))
		}
	}
	names := make([]string, 0, len(components))
	for name := range components {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Fprintf(os.Stderr, "usage: %s COMPONENT [FLAGS]\nwhere COMPONENT is one of: %s\n", os.Args[0], strings.Join(names, ", "))
	os.Exit(2)
}
