// Command kserve runs the batcher of KServe's agent, and nothing else of the agent, for the benchmark of peers.
//
// It is KServe's own code from end to end: pkg/batcher in front of a reverse proxy, in the handler chain, transport,
// server and logger that cmd/agent of the same release builds for a pod with `batcher` in its InferenceService. What
// is left out does not touch a predict request there: the model puller, the payload logger (off without --log-url),
// the unix socket for exec probes and the readiness probe of the container behind.
package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/kserve/kserve/pkg/batcher"
	flag "github.com/spf13/pflag"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"knative.dev/networking/pkg/http/header"
	"knative.dev/networking/pkg/http/proxy"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/network"
	"knative.dev/pkg/network/handlers"
	"knative.dev/serving/pkg/queue"
	"knative.dev/serving/pkg/queue/health"
)

// Names, types and defaults are the agent's.
var (
	port          = flag.String("port", "9081", "Agent port")
	componentPort = flag.Int("component-port", 8080, "Component port")
	maxBatchSize  = flag.String("max-batchsize", "32", "Max Batch Size")
	maxLatency    = flag.String("max-latency", "5000", "Max Latency in milliseconds")
)

const (
	// The agent's "somewhat arbitrary" number, both in all and for the one host behind it.
	maxIdleConns = 1000
	// The agent waits 30 s without a request before it stops; a benchmark has no endpoints left to propagate.
	quietPeriod = time.Millisecond
)

func main() {
	flag.Parse()
	// Without SERVING_LOGGING_CONFIG and SERVING_LOGGING_LEVEL, as in a Standard deployment, this is zap's production
	// logger at info: a line per request and per batch, sampled to 100 a second and every 100th after.
	logger, _ := logging.NewLogger("", "")
	size, latency := positive(logger, "max batch size", *maxBatchSize), positive(logger, "max latency", *maxLatency)
	server, drain := buildServer(*port, *componentPort, size, latency, logger)

	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	go func() {
		if err := server.ListenAndServe(); err != http.ErrServerClosed {
			logger.Fatalw("Failed to bring up agent, shutting down.", zap.Error(err))
		}
	}()
	<-stop.Done()
	drain()
	if err := server.Shutdown(context.Background()); err != nil {
		logger.Errorw("Failed to shutdown server", zap.Error(err))
	}
}

// positive is the agent's rule for both settings: a whole number above zero, else exit with status 1.
func positive(logger *zap.SugaredLogger, what, text string) int {
	number, err := strconv.Atoi(text)
	if err != nil || number <= 0 {
		logger.Errorf("Invalid %s %q", what, text)
		os.Exit(1)
	}
	return number
}

// buildServer mirrors the function of that name in cmd/agent/main.go: handlers from the innermost to the outermost.
func buildServer(port string, componentPort, size, latency int, logger *zap.SugaredLogger) (*http.Server, func()) {
	httpProxy := httputil.NewSingleHostReverseProxy(&url.URL{
		Scheme: "http",
		Host:   net.JoinHostPort("127.0.0.1", strconv.Itoa(componentPort)),
	})
	httpProxy.Transport = network.NewAutoTransport(maxIdleConns, maxIdleConns) // HTTP/1 or h2c, as the request came
	httpProxy.ErrorHandler = handlers.Error(logger)
	httpProxy.BufferPool = proxy.NewBufferPool()
	httpProxy.FlushInterval = proxy.FlushInterval

	drainer := &handlers.Drainer{
		QuietPeriod:           quietPeriod,
		HealthCheckUAPrefixes: []string{header.ActivatorUserAgent},
		Inner:                 queue.ForwardedShimHandler(batcher.New(size, latency, httpProxy, logger)),
		HealthCheck:           health.ProbeHandler(noop.NewTracerProvider().Tracer(""), func() bool { return true }),
	}
	return network.NewServer(":"+port, drainer), drainer.Drain
}
