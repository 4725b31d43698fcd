// Command harness runs one real Choria broker, server or election candidate for our tests.
//
// Choria is used as a library, through its exported functions only. A server keeps much of its state in the process,
// so each is a process of its own. It ends when its standard input does: nothing outlives the tests that started it.
// What the tests read: lines on stdout that start with "harness: ", exit codes, and the broker's monitoring page.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/choria-io/go-choria/backoff"
	"github.com/choria-io/go-choria/broker/network"
	"github.com/choria-io/go-choria/build"
	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/config"
	"github.com/choria-io/go-choria/plugin"
	agents "github.com/choria-io/go-choria/providers/agent/mcorpc/golang"
	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/provision"
	election "github.com/choria-io/go-choria/providers/election/streams"
	"github.com/choria-io/go-choria/providers/provtarget"
	"github.com/choria-io/go-choria/server"
	"github.com/sirupsen/logrus"
)

// Exit codes; the last two are those of `server --parse-only`, run anew by an accepted restart.
const (
	exitOrphaned    = 41 // standard input was closed
	exitConfigured  = 42 // the configuration on disk parses, and this server would be a normal member
	exitProvisionMe = 43 // the configuration on disk would put this server back into provisioning mode
)

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("usage: harness broker CONFIG | candidate CONFIG | server --identity I --jwt FILE --config FILE [--parse-only]"))
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(exitOrphaned)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	wg := &sync.WaitGroup{}
	switch os.Args[1] {
	case "broker":
		runBroker(ctx, wg, os.Args[2])
	case "candidate":
		runCandidate(ctx, os.Args[2])
	case "server":
		runServer(ctx, wg, os.Args[2:])
	default:
		fail(fmt.Errorf("unknown command %q", os.Args[1]))
	}
	<-ctx.Done()
	wg.Wait()
}

func runBroker(ctx context.Context, wg *sync.WaitGroup, file string) {
	cfg, err := config.NewSystemConfig(file, true)
	fail(err)
	fw, err := choria.NewWithConfig(cfg)
	fail(err)
	broker, err := network.NewServer(fw, &build.Info{}, false)
	fail(err)
	wg.Add(1)
	go broker.Start(ctx, wg)
	for !broker.Started() {
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Println("harness: broker ready")
}

// runCandidate campaigns for the key that provisioners elect their leader with, until it is told to stop.
func runCandidate(ctx context.Context, file string) {
	cfg, err := config.NewSystemConfig(file, false)
	fail(err)
	fw, err := choria.NewWithConfig(cfg)
	fail(err)
	say := func(word string) func() {
		return func() { fmt.Printf("harness: %s %s\n", word, time.Now().UTC().Format(time.RFC3339Nano)) }
	}
	candidate, err := fw.NewElection(ctx, nil, "provisioner", true,
		election.OnWon(say("won")), election.OnLost(say("lost")), election.WithBackoff(backoff.TwentySec))
	fail(err)
	fail(candidate.Start(ctx))
}

func runServer(ctx context.Context, wg *sync.WaitGroup, args []string) {
	flags := flag.NewFlagSet("server", flag.ExitOnError)
	identity := flags.String("identity", "", "identity while in provisioning mode")
	jwt := flags.String("jwt", "", "provisioning.jwt")
	file := flags.String("config", "", "configuration file, written by the provisioner")
	parseOnly := flags.Bool("parse-only", false, "after the restart, judge the configuration and exit")
	fail(flags.Parse(args))

	(&build.Info{}).SetProvisionJWTFile(*jwt)
	fail(plugin.Register("golang_mcorpc", agents.ChoriaPlugin()))
	fail(plugin.Register("choria_provision", provision.ChoriaPlugin()))

	_, missing := os.Stat(*file)
	configured := missing == nil
	cfg := load(*identity, *file, configured)
	provtarget.Configure(ctx, cfg, logrus.NewEntry(logrus.StandardLogger()))
	fw, err := choria.NewWithConfig(cfg)
	fail(err)
	if configured && *parseOnly {
		if fw.ProvisionMode() {
			os.Exit(exitProvisionMe)
		}
		os.Exit(exitConfigured)
	}
	fw.ConfigureProvisioning(ctx)
	instance, err := server.NewInstance(fw)
	fail(err)
	wg.Add(1)
	fail(instance.Run(ctx, wg))
	fmt.Printf("harness: server running provisioning=%t\n", fw.ProvisionMode())
}

// load reads the configuration a provisioner wrote, or makes the one a server without any configuration has.
func load(identity, file string, configured bool) *config.Config {
	if configured {
		cfg, err := config.NewSystemConfig(file, true)
		fail(err)
		return cfg
	}
	cfg, err := config.NewDefaultSystemConfig(true)
	fail(err)
	cfg.ConfigFile = file
	cfg.Identity = identity
	cfg.LogLevel = "info"
	cfg.Choria.SecurityProvider = "file"
	cfg.DisableSecurityProviderVerify = true
	return cfg
}

func fail(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "harness: %v\n", err)
		os.Exit(1)
	}
}
