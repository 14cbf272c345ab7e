#!/bin/sh
# Pods of other nodes are asked for on the network that the nodes share, and each node answers for its own. So no program
# has to tell the nodes of each other; kind's own image has kindnetd for that, whose sources are in no Go module.
set -eu
pods=10.244.0.0/16
device=eth0
ip route replace "$pods" dev "$device"
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >"/proc/sys/net/ipv4/conf/$device/proxy_arp"
echo 0 >"/proc/sys/net/ipv4/neigh/$device/proxy_delay"
# Beyond the cluster nobody knows the pods' addresses.
nft add table ip pod-network
nft add chain ip pod-network out '{ type nat hook postrouting priority srcnat; }'
nft flush chain ip pod-network out
nft add rule ip pod-network out ip saddr "$pods" ip daddr != "$pods" oifname "$device" masquerade
