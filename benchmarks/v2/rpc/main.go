// Command rpc is both ends of a benchmark of a gRPC sidecar: `rpc serve` the predictor behind it, `rpc load` the
// callers in front of it.
//
// Messages are read field by field where they lie, without generated types, so that both cost less than what is
// between them. The numbers are those of Triton's grpc_service.proto and model_config.proto.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"sort"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	service  = "inference.GRPCInferenceService"
	model    = "echo"
	maxBatch = 1024
	width    = 4 // FP32 elements of a row
)

// raw hands messages over as the bytes that they are.
type raw struct{}

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (raw) Name() string { return "proto" }

// An InferInputTensor and an InferOutputTensor have the same fields, so each input is its output as it is.
const (
	requestInput, requestRaw = 5, 7
	answerOutput, answerRaw  = 5, 6
)

var errBroken = errors.New("not a message")

// each calls visit with every field of a message that has a length.
func each(message []byte, visit func(number protowire.Number, value []byte)) error {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return errBroken
		}
		message = message[size:]
		if kind == protowire.BytesType {
			value, size := protowire.ConsumeBytes(message)
			if size < 0 {
				return errBroken
			}
			visit(number, value)
			message = message[size:]
			continue
		}
		size = protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return errBroken
		}
		message = message[size:]
	}
	return nil
}

func text(message []byte, number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(message, number, protowire.BytesType), value)
}

func part(message []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(message, number, protowire.BytesType), value)
}

func number(message []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(message, field, protowire.VarintType), value)
}

func tensor(name string, shape ...int64) []byte {
	var packed []byte
	for _, size := range shape {
		packed = protowire.AppendVarint(packed, uint64(size))
	}
	return part(text(text(nil, 1, name), 2, "FP32"), 3, packed)
}

// infer answers with the tensors that were sent.
func infer(request []byte) ([]byte, error) {
	answer := text(make([]byte, 0, len(request)+16), 1, model)
	err := each(request, func(field protowire.Number, value []byte) {
		switch field {
		case requestInput:
			answer = part(answer, answerOutput, value)
		case requestRaw:
			answer = part(answer, answerRaw, value)
		}
	})
	return answer, err
}

func metadata([]byte) ([]byte, error) {
	rows := tensor("rows", -1, width)
	return part(part(text(text(nil, 1, model), 3, "stub"), 4, rows), 5, rows), nil
}

func config([]byte) ([]byte, error) {
	return part(nil, 1, number(text(nil, 1, model), 4, maxBatch)), nil
}

func yes([]byte) ([]byte, error) { return number(nil, 1, 1), nil }

func method(name string, answer func([]byte) ([]byte, error)) grpc.MethodDesc {
	handler := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request []byte
		if err := decode(&request); err != nil {
			return nil, err
		}
		found, err := answer(request)
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		return &found, nil
	}
	return grpc.MethodDesc{MethodName: name, Handler: handler}
}

func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			method("ModelInfer", infer), method("ModelMetadata", metadata), method("ModelConfig", config),
			method("ServerLive", yes), method("ServerReady", yes), method("ModelReady", yes),
		},
	}, nil)
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGTERM, syscall.SIGINT)
	go func() { <-stopped; server.Stop() }()
	return server.Serve(listener)
}

// caller sends rows that no other caller sends, one after the other, and compares each answer with what it sent.
type caller struct {
	connection *grpc.ClientConn
	row        []byte
	latencies  []float64
	wrong      map[string]int
}

func (c *caller) run(until time.Time) {
	for sequence := uint32(0); ; sequence++ {
		sent := time.Now()
		if sent.After(until) {
			return
		}
		binary.LittleEndian.PutUint32(c.row[8:], math.Float32bits(float32(sequence%(1<<24))))
		request := part(part(text(nil, 1, model), requestInput, tensor("rows", 1, width)), requestRaw, c.row)
		var answer []byte
		if err := c.connection.Invoke(context.Background(), "/"+service+"/ModelInfer", &request, &answer); err != nil {
			c.wrong["status "+status.Code(err).String()]++
			continue
		}
		if !isRight(answer, c.row) {
			c.wrong["wrong answer"]++
			continue
		}
		c.latencies = append(c.latencies, time.Since(sent).Seconds())
	}
}

func isRight(answer, row []byte) bool {
	outputs, found := 0, false
	err := each(answer, func(field protowire.Number, value []byte) {
		switch field {
		case answerOutput:
			outputs++
		case answerRaw:
			found = bytes.Equal(value, row)
		}
	})
	return err == nil && outputs == 1 && found
}

// figures are what `load` prints, as one line of JSON. Times in seconds.
type figures struct {
	Requests int            `json:"requests"`
	Seconds  float64        `json:"seconds"`
	P50      float64        `json:"p50"`
	P99      float64        `json:"p99"`
	CPU      float64        `json:"cpu"`
	Errors   map[string]int `json:"errors"`
}

func load(address string, callers, connections int, seconds float64) (figures, error) {
	found := figures{Errors: map[string]int{}}
	opened := make([]*grpc.ClientConn, connections)
	for i := range opened {
		connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return found, err
		}
		defer connection.Close()
		opened[i] = connection
	}
	before, start := cpu(), time.Now()
	until := start.Add(time.Duration(seconds * float64(time.Second)))
	all := make([]*caller, callers)
	var running sync.WaitGroup
	for i := range all {
		row := make([]byte, 4*width)
		binary.LittleEndian.PutUint32(row[12:], math.Float32bits(float32(i)))
		all[i] = &caller{connection: opened[i%connections], row: row, wrong: map[string]int{}}
		running.Add(1)
		go func() { defer running.Done(); all[i].run(until) }()
	}
	running.Wait()
	found.Seconds, found.CPU = time.Since(start).Seconds(), cpu()-before
	var latencies []float64
	for _, each := range all {
		latencies = append(latencies, each.latencies...)
		for what, count := range each.wrong {
			found.Errors[what] += count
		}
	}
	sort.Float64s(latencies)
	found.Requests = len(latencies)
	found.P50, found.P99 = percentile(latencies, 0.50), percentile(latencies, 0.99)
	return found, nil
}

func percentile(ordered []float64, share float64) float64 {
	if len(ordered) == 0 {
		return 0
	}
	return ordered[max(0, int(math.Ceil(share*float64(len(ordered))))-1)]
}

func cpu() float64 {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("say `serve` or `load`")
	}
	flags := flag.NewFlagSet(arguments[0], flag.ExitOnError)
	address := flags.String("address", "127.0.0.1:8001", "where to listen, or whom to ask")
	callers := flags.Int("callers", 64, "requests under way")
	connections := flags.Int("connections", 4, "connections that the callers share")
	seconds := flags.Float64("seconds", 4, "how long")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	encoding.RegisterCodec(raw{})
	switch arguments[0] {
	case "serve":
		return serve(*address)
	case "load":
		found, err := load(*address, *callers, *connections, *seconds)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(found)
	}
	return fmt.Errorf("%q is neither `serve` nor `load`", arguments[0])
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rpc:", err)
		os.Exit(1)
	}
}
