# tarjan.awk: circles of a directed graph, by Tarjan's algorithm; put before the program that calls it.
# next_node[node, 1 .. count[node]]: where arrows of a node lead. visit(node), where it is not in `number` yet: calls
# circle(names, size) for each set of several nodes that reach each other.
function visit(at,    i, to, names, size) {
    number[at] = low[at] = ++visited
    stack[++depth] = at
    open[at] = 1
    for (i = 1; i <= count[at]; i++) {
        to = next_node[at, i]
        if (!(to in number)) {
            visit(to)
            if (low[to] < low[at]) low[at] = low[to]
        } else if (open[to] && number[to] < low[at]) low[at] = number[to]
    }
    if (low[at] != number[at]) return
    do {
        to = stack[depth--]
        open[to] = 0
        names = names " " to
        size++
    } while (to != at)
    if (size > 1) circle(names, size)
}
