/* In which network namespace sockets are opened.  A socket stays in the one where it was opened, so the loop's thread
 * goes to a pod's for that only, and is back in the node's before it sleeps. */
#ifndef KUBENGINE_PROBING_NETWORK_H
#define KUBENGINE_PROBING_NETWORK_H

#include <fcntl.h>
#include <sys/syscall.h>

#include "table.h"

#define NAMESPACE_NETWORK 0x40000000 /* CLONE_NEWNET */
#define NETWORK_OF_THE_NODE (-1)
#define NETWORK_UNSURE (-2) /* the descriptor that the thread last went to may stand for another by now */

/* Go to a network: a descriptor of its namespace, or the node's.  0, or an errno. */
static inline int network_enter(probe_loop *l, int network) {
    if (network == l->network) return 0;
    if (l->home_fd < 0) return ENOENT; /* there would be no way back */
    if (syscall(SYS_setns, network < 0 ? l->home_fd : network, NAMESPACE_NETWORK) < 0) return errno;
    l->network = network;
    if (network >= 0) l->networks_entered++;
    return 0;
}

/* Where it fails, every later probe tries again before it opens a socket, and errs. */
static inline void network_go_home(probe_loop *l) { (void)network_enter(l, NETWORK_OF_THE_NODE); }

/* `network` is open as long as a probe has it: what takes it away comes here first. */
static inline void probe_set_network(probe_loop *l, probe *p, int network) {
    if (p->network == network) return;
    p->network = network;
    if (l->network >= 0) l->network = NETWORK_UNSURE;
}

#endif
