// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
)

// notifyMain tells systemd, if it started this program, that this process is the main one and is
// ready.
func notifyMain(log zerolog.Logger) {
	notify(log, fmt.Sprintf("MAINPID=%d\n%s", os.Getpid(), daemon.SdNotifyReady))
}

// notifyReady tells systemd that the service is ready.
func notifyReady(log zerolog.Logger) { notify(log, daemon.SdNotifyReady) }

// notifyStopping tells systemd that the service stops.
func notifyStopping(log zerolog.Logger) { notify(log, daemon.SdNotifyStopping) }

// notify sends a state to the socket that NOTIFY_SOCKET names, if it names one.
func notify(log zerolog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn().Err(err).Msg("telling systemd the state of the service")
	}
}
