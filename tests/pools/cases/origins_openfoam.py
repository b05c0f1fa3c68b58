"""OpenFOAM in the origin's own directory: a flow in a cavity, meshed by blockMesh, solved by icoFoam, unchanged."""
import os
import re
import shutil

from cases.origins import tree
from harness import Skipped, case

HEADER = "FoamFile { version 2.0; format ascii; class %s; object %s; }\n"
WALLS = "wall { type %s; } frontAndBack { type empty; }"
CASE = {
    "system/blockMeshDict": ("dictionary", """scale 0.1;
vertices ((0 0 0) (1 0 0) (1 1 0) (0 1 0) (0 0 0.1) (1 0 0.1) (1 1 0.1) (0 1 0.1));
blocks (hex (0 1 2 3 4 5 6 7) (20 20 1) simpleGrading (1 1 1));
boundary (lid { type wall; faces ((3 7 6 2)); } wall { type wall; faces ((0 4 7 3) (2 6 5 1) (1 5 4 0)); }
frontAndBack { type empty; faces ((0 3 2 1) (4 5 6 7)); });
"""),
    "system/controlDict": ("dictionary", """application icoFoam; startFrom startTime; startTime 0; stopAt endTime; endTime 0.5;
deltaT 0.005; writeControl timeStep; writeInterval 10; purgeWrite 0; writeFormat ascii; writePrecision 6;
writeCompression off; timeFormat general; timePrecision 6; runTimeModifiable true;
"""),
    "system/fvSchemes": ("dictionary", """ddtSchemes { default Euler; } gradSchemes { default Gauss linear; }
divSchemes { default none; div(phi,U) Gauss linear; } laplacianSchemes { default Gauss linear orthogonal; }
interpolationSchemes { default linear; } snGradSchemes { default orthogonal; }
"""),
    "system/fvSolution": ("dictionary", """solvers { p { solver PCG; preconditioner DIC; tolerance 1e-06; relTol 0.05; }
pFinal { $p; relTol 0; } U { solver smoothSolver; smoother symGaussSeidel; tolerance 1e-05; relTol 0; } }
PISO { nCorrectors 2; nNonOrthogonalCorrectors 0; pRefCell 0; pRefValue 0; }
"""),
    "constant/transportProperties": ("dictionary", "nu 0.01;\n"),
    "0/p": ("volScalarField", "dimensions [0 2 -2 0 0 0 0]; internalField uniform 0;\nboundaryField { lid { type zeroGradient; } "
            + WALLS % "zeroGradient" + " }\n"),
    "0/U": ("volVectorField", "dimensions [0 1 -1 0 0 0 0]; internalField uniform (0 0 0);\n"
            "boundaryField { lid { type fixedValue; value uniform (1 0 0); } " + WALLS % "noSlip" + " }\n"),
}


def write_case(top):
    for name, (kind, text) in CASE.items():
        os.makedirs(os.path.join(top, os.path.dirname(name)), exist_ok=True)
        with open(os.path.join(top, name), "w") as f:
            f.write(HEADER % (kind, os.path.basename(name)) + text)


@case(90)
def origin_of_a_flow_solver(t):
    """blockMesh and icoFoam by the origin's own path: the same fields as without a pool, and what the origin was spared."""
    if not shutil.which("blockMesh") or not shutil.which("icoFoam"):
        raise Skipped("OpenFOAM isn't installed (tests/install-packages)")
    plain, origin = (os.path.join(t.disk, name) for name in ("plain", "origin"))
    for top in (plain, origin):
        write_case(top)
    env = {"WM_PROJECT_DIR": "/usr/share/openfoam"}
    solve = lambda top: "cd %s && blockMesh > log.blockMesh && icoFoam > log.icoFoam" % top  # noqa: E731 (short)
    t.command(["bash", "-c", solve(plain)], timeout=60, env=env)
    page = os.path.join(t.disk, "page.html")
    ran = t.fb("run", "--media", "memory:256M", "--origin", origin, "--report", page, "--", "bash", "-c", solve(origin),
               timeout=60, env=env)
    ran.says("all changes are at the origin")
    with open(page) as f:
        text = f.read()
    t.ok("Load of the origin" in text, "the report doesn't show what the origin was spared")
    logs = [open(os.path.join(top, "log.icoFoam")).read() for top in (plain, origin)]
    residuals = [re.findall(r"Initial residual = [^,]*", log) for log in logs]
    t.ok(len(residuals[0]) >= 400 and residuals[0] == residuals[1], "%d and %d residuals" % tuple(map(len, residuals)))
    trees = [{name: what for name, what in tree(top).items() if not name.startswith("log.")} for top in (plain, origin)]
    t.ok(len(trees[0]) > 60, "only %d files" % len(trees[0]))
    t.same(*trees, "the case")
    print(next(line for line in ran.err.splitlines() if "all changes are at the origin" in line))
