// Sorts each file of /fb/in, and merges the results in /fb/results.
params.input = '/fb/in/*.txt'
params.results = '/fb/results'

process sort {
    input:
    path reads

    output:
    path "${reads.baseName}.sorted"

    script:
    """
    pwd > where
    grep -q '^/fb/scratch/' where
    sort ${reads} > ${reads.baseName}.sorted
    """
}

process merge {
    publishDir params.results, mode: 'move'

    input:
    path parts

    output:
    path 'merged.txt'

    script:
    """
    sort -m ${parts} > merged.txt
    """
}

workflow {
    Channel.fromPath(params.input) | sort | collect | merge
}
