#!/bin/sh
# The same helper in shell. It needs jq: a shell can't read JSON, and text cut out with sed is no answer.
set -eu

input=$(cat)

# The identity to use is this one, not what the server says of itself in its inventory.
identity=$(printf '%s' "$input" | jq -r .identity)
# The inventory is a string that contains JSON: fromjson decodes it a second time.
role=$(printf '%s' "$input" | jq -r '.inventory | fromjson | .facts.role // ""')

defer() {
    jq -n --arg msg "$1" '{defer: true, msg: $msg}'
    exit 0
}

case "${identity#*.}" in
    lab.example.net) brokers=nats://broker.lab.example.net:4222 ;;
    example.net) brokers=nats://broker1.example.net:4222,nats://broker2.example.net:4222 ;;
    *) defer "no broker is known for the domain ${identity#*.}" ;;
esac

case "$role" in
    test) loglevel=debug ;;
    *) loglevel=warn ;;
esac

# jq writes the quotes: never build JSON by hand around text that came from a server.
jq -n --arg identity "$identity" --arg brokers "$brokers" --arg loglevel "$loglevel" '{
    configuration: {
        identity: $identity,
        "plugin.choria.middleware_hosts": $brokers,
        "plugin.choria.use_srv": "false",
        "plugin.choria.server.provision": "0",
        logfile: "/var/log/choria.log",
        loglevel: $loglevel,
        registerinterval: "300"
    }
}'
