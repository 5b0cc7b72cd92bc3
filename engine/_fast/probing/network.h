/* Chooses the network namespace in which sockets are opened.  A socket stays in its namespace, so the loop's thread
 * enters a pod's namespace only to open a socket, and returns to the node's before it sleeps. */
#ifndef KUBENGINE_PROBING_NETWORK_H
#define KUBENGINE_PROBING_NETWORK_H

#include <fcntl.h>
#include <sys/syscall.h>

#include "table.h"

#define NAMESPACE_NETWORK 0x40000000 /* CLONE_NEWNET */
#define NETWORK_OF_THE_NODE (-1)
#define NETWORK_UNSURE (-2) /* the descriptor of the last namespace may have been reused for another */

/* Enter a network namespace, given by descriptor, or the node's.  0, or an errno. */
static inline int network_enter(probe_loop *l, int network) {
    if (network == l->network) return 0;
    if (l->home_fd < 0) return ENOENT; /* the thread could not return to the node's namespace */
    if (syscall(SYS_setns, network < 0 ? l->home_fd : network, NAMESPACE_NETWORK) < 0) return errno;
    l->network = network;
    if (network >= 0) l->networks_entered++;
    return 0;
}

/* If it fails, every later probe retries before it opens a socket, and reports an error. */
static inline void network_go_home(probe_loop *l) { (void)network_enter(l, NETWORK_OF_THE_NODE); }

/* `network` stays open while a probe has it: it is removed here before it is closed. */
static inline void probe_set_network(probe_loop *l, probe *p, int network) {
    if (p->network == network) return;
    p->network = network;
    if (l->network >= 0) l->network = NETWORK_UNSURE;
}

#endif
