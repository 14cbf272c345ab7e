// Command kubeadm is Kubernetes' own, which kind runs in its nodes. It stands here, and not among the components of the
// one executable, because only the image of kind's nodes needs it; and in this module, so that it is of the same release.
package main

import (
	"k8s.io/kubernetes/cmd/kubeadm/app"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/errors"
)

func main() {
	errors.HandleError(app.Run())
}
